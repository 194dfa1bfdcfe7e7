package outside

import (
	"strconv"
	"strings"
)

// KernelMemory returns how many bytes of the host the kernel uses for itself, from the text
// of /proc/meminfo: all memory that is neither free nor a page of a process or a file,
// without the caches of the kernel that it can give up. Most of it is charged to somebody;
// it is only used to see that the kernel holds more than before.
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

// lockSize is the least that struct file_lock has on a kernel of 64 bits.
const lockSize = 192

// LockCache returns how many file locks all of the host has and the bytes of one, from
// the text of /proc/slabinfo (slabinfo(5)). Where the kernel does not list them, because it has
// merged the cache with one of another name, the number is -1.
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
