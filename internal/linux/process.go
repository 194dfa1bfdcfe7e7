package linux

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
)

// StartTime returns when process pid started, in clock ticks since boot (field 22 of
// proc_pid_stat(5)). PID and start time together identify one process of this boot.
func StartTime(pid int) (uint64, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// Field 2, the name, may contain any character.
	_, rest, ok := strings.Cut(string(stat[max(strings.LastIndexByte(string(stat), ')'), 0):]), " ")
	fields := strings.Fields(rest)
	if !ok || len(fields) < 20 {
		return 0, fmt.Errorf("/proc/%d/stat: unknown form", pid)
	}
	return strconv.ParseUint(fields[19], 10, 64)
}

// DiskWrites returns how many bytes process pid and the children that it has waited for have
// caused to be written to disk, less those that were truncated before they were written
// (write_bytes and cancelled_write_bytes of proc_pid_io(5)). The kernel counts a page of a
// file when it becomes dirty, so unlinked files and writes through a mapping count. It does
// not count tmpfs, which is never written back, blocks that fallocate(2) reserves, or, once
// they have exited, children of a process that ignores SIGCHLD.
func DiskWrites(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	if err != nil {
		return 0, err
	}
	var figures [2]int64
	for i, name := range []string{"\nwrite_bytes: ", "\ncancelled_write_bytes: "} {
		_, rest, _ := strings.Cut(string(text), name)
		line, _, _ := strings.Cut(rest, "\n")
		if figures[i], err = strconv.ParseInt(line, 10, 64); err != nil {
			return 0, fmt.Errorf("/proc/%d/io: unknown form: %w", pid, err)
		}
	}
	return figures[0] - figures[1], nil
}

// BootID identifies this boot of the machine.
func BootID() (string, error) {
	if id := bootID.Load(); id != nil {
		return *id, nil
	}
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	id := strings.TrimSpace(string(text))
	if err == nil {
		bootID.Store(&id)
	}
	return id, err
}

var bootID atomic.Pointer[string] // it cannot change while this process lives
