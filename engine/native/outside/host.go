package outside

import (
	"strconv"
	"strings"
)

// KernelMemory returns how many bytes the kernel of the host uses for itself, from the text
// of /proc/meminfo: all memory that is neither free, nor a page of a process or a file, nor a
// reclaimable cache. Most of it is charged to some cgroup, so the figure only shows whether
// the kernel holds more than before.
func KernelMemory(meminfo string) int64 {
	var n int64
	for line := range strings.Lines(meminfo) {
		name, value, _ := strings.Cut(line, ":")
		sign := int64(-1)
		switch name {
		case "MemTotal":
			sign = 1
		case "MemFree", "Buffers", "Cached", "SwapCached", "AnonPages", "KReclaimable":
		default:
			continue
		}
		kib, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		n += sign * kib << 10
	}
	return n
}

// lockCache is the slab cache of file locks (filelock_init in fs/locks.c). It is made
// without SLAB_ACCOUNT.
const lockCache = "file_lock_cache"

// lockSize is the smallest size of struct file_lock on a 64-bit kernel.
const lockSize = 192

// LockCache returns how many file locks the whole host has, and the size of one in bytes, from
// the text of /proc/slabinfo (slabinfo(5)). The number is -1 if the kernel does not list them
// because it has merged the cache with another one.
func LockCache(slabinfo string) (locks, size int64) {
	locks, size = -1, lockSize
	for line := range strings.Lines(slabinfo) {
		if f := strings.Fields(line); len(f) > 3 && f[0] == lockCache {
			locks, _ = strconv.ParseInt(f[1], 10, 64)
			size, _ = strconv.ParseInt(f[3], 10, 64)
		}
	}
	return locks, size
}
