package linux

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strconv"
)

// HasIdleProcessor reports whether fewer threads run on the host, besides the caller, than there are
// processors for this process. If the kernel does not tell, it returns true.
func HasIdleProcessor() bool {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return true
	}
	fields := bytes.Fields(text) // the fourth is running/all, proc_loadavg(5)
	if len(fields) < 4 {
		return true
	}
	running, _, _ := bytes.Cut(fields[3], []byte("/"))
	n, err := strconv.Atoi(string(running))
	return err != nil || n <= runtime.NumCPU()
}

// MemAvailable returns how many bytes of memory the host has for new programs (proc_meminfo(5)).
func MemAvailable() (int64, error) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	_, rest, found := bytes.Cut(text, []byte("\nMemAvailable:"))
	if fields := bytes.Fields(rest); found && len(fields) > 0 {
		if kib, err := strconv.ParseInt(string(fields[0]), 10, 54); err == nil {
			return kib << 10, nil
		}
	}
	return 0, fmt.Errorf("/proc/meminfo: has no line MemAvailable")
}
