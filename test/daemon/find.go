package daemon

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
)

// Role is a role of boxd-init.
type Role string

// The roles that a daemon's boxd-init plays outside of boxes.
const (
	Launcher Role = "launcher"
	Keeper   Role = "keeper"
)

// Find lists the processes that play role for this daemon. While one is restarted, there may
// be none, and a new child of one may still look like it.
func (d *Daemon) Find(role Role) (pids []int) {
	runtime := d.runtime()
	names, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			continue // it has ended
		}
		args := bytes.Split(bytes.TrimSuffix(b, []byte{0}), []byte{0})
		if len(args) < 2 || string(args[1]) != string(role) || !slices.ContainsFunc(args, func(a []byte) bool { return string(a) == runtime }) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		if err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}
