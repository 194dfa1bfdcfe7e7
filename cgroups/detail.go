package cgroups

import (
	"strconv"
	"strings"
	"time"

	"github.com/boxd/boxd/internal/linux"
)

// Detail is the memory usage, in bytes, and the processor time of all commands of a box. What
// this host does not count is 0.
type Detail struct {
	Memory                    int64 // everything charged, including the following
	Anon, File, Shmem, Mapped int64 // private memory; page cache with tmpfs; tmpfs and shared memory; mapped files
	ActiveAnon, InactiveAnon  int64
	ActiveFile, InactiveFile  int64
	User, System              time.Duration
}

// memoryParts maps keys of memory.stat, on v1 or on cgroup2, to fields of d.
func (d *Detail) memoryParts(v1 bool) map[string]*int64 {
	if v1 {
		return map[string]*int64{
			"total_rss": &d.Anon, "total_cache": &d.File, "total_shmem": &d.Shmem, "total_mapped_file": &d.Mapped,
			"total_active_anon": &d.ActiveAnon, "total_inactive_anon": &d.InactiveAnon,
			"total_active_file": &d.ActiveFile, "total_inactive_file": &d.InactiveFile,
		}
	}
	return map[string]*int64{
		"anon": &d.Anon, "file": &d.File, "shmem": &d.Shmem, "file_mapped": &d.Mapped,
		"active_anon": &d.ActiveAnon, "inactive_anon": &d.InactiveAnon,
		"active_file": &d.ActiveFile, "inactive_file": &d.InactiveFile,
	}
}

// Detail reads the current usage of the box's commands.
func (g *Group) Detail() (d Detail, err error) {
	if d.Memory, err = g.MemoryUse(); err != nil {
		return d, err
	}
	if t := g.treeOf("memory"); t != nil {
		text, err := linux.ReadFileAt(t.box, "work/memory.stat")
		if err != nil {
			return d, ignoreGone(err)
		}
		readNumbers(text, d.memoryParts(t.on.v1))
	}
	// cgroup2 counts processor time even without a controller.
	text, err := linux.ReadFileAt(g.v2.box, "work/cpu.stat")
	if err != nil {
		return d, ignoreGone(err)
	}
	var user, system int64
	readNumbers(text, map[string]*int64{"user_usec": &user, "system_usec": &system})
	d.User, d.System = time.Duration(user)*time.Microsecond, time.Duration(system)*time.Microsecond
	return d, nil
}

// readNumbers sets those numbers of to whose keys are in text, the content of a flat keyed
// file of cgroupfs.
func readNumbers(text string, to map[string]*int64) {
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if n := to[key]; n != nil {
			*n, _ = strconv.ParseInt(value, 10, 64)
		}
	}
}
