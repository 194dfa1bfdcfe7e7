package linux

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// StartTime is when process pid started, in clock ticks since boot (field 22 of
// proc_pid_stat(5)). With the pid it names one process of this boot.
func StartTime(pid int) (uint64, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The name, field 2, may hold anything.
	_, rest, ok := strings.Cut(string(stat[max(strings.LastIndexByte(string(stat), ')'), 0):]), " ")
	fields := strings.Fields(rest)
	if !ok || len(fields) < 20 {
		return 0, fmt.Errorf("/proc/%d/stat: unknown form", pid)
	}
	return strconv.ParseUint(fields[19], 10, 64)
}

// BootID names this boot of the machine.
func BootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id)), err
}
