// Package stats reads what a whole box uses now, PID 1 included, with
// github.com/containerd/cgroups/v3.
//
// Importing that library adds 2.4 ms and 8 MB to the start of every process, so neither boxd
// nor boxd-init links this package. It is for an engine that drives containerd, whose metrics
// come in the library's types. cgroups.SlotStats reads what one command used.
package stats

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/cgroups/v3/cgroup1"
	v1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	"github.com/containerd/cgroups/v3/cgroup2"
	v2 "github.com/containerd/cgroups/v3/cgroup2/stats"

	"github.com/boxd/boxd/cgroups"
)

// Usage is what a box uses at this moment. A figure that this host does not offer
// is nil.
type Usage struct {
	Memory *int64         // bytes, page cache included
	PIDs   *int64         // processes and threads
	CPU    *time.Duration // used since the box was made
}

// Read reads the use of box id by the mount points that h was detected at, which
// must still show the cgroups. It needs no privilege.
func Read(h *cgroups.Host, id string) (Usage, error) {
	group := cgroups.Path(id)
	u, err := readV2(h.Mountpoint(""), group)
	if err == nil && h.Mode() != cgroups.Unified {
		err = readV1(&u, h, group)
	}
	if err != nil {
		return u, fmt.Errorf("reading the use of box %q: %w", id, err)
	}
	return u, nil
}

// readV2 reads what cgroup2 offers: at least CPU time, which needs no controller.
func readV2(mountpoint, group string) (Usage, error) {
	var u Usage
	if mountpoint == "" {
		return u, nil
	}
	if _, err := os.Stat(filepath.Join(mountpoint, group)); err != nil {
		return u, err
	}
	m, err := cgroup2.Load(group, cgroup2.WithMountpoint(mountpoint))
	if err != nil {
		return u, err
	}
	s, err := m.StatFiltered(cgroup2.StatPids | cgroup2.StatCPU | cgroup2.StatMemory)
	if err != nil {
		return u, err
	}
	fromV2(&u, s)
	// The library gives zeros for the files of absent controllers.
	if !hasFile(mountpoint, group, "memory.current") {
		u.Memory = nil
	}
	if !hasFile(mountpoint, group, "pids.current") {
		u.PIDs = nil
	}
	return u, nil
}

func hasFile(path ...string) bool {
	_, err := os.Stat(filepath.Join(path...))
	return err == nil
}

func fromV2(u *Usage, s *v2.Metrics) {
	if s.GetCPU() != nil {
		cpu := time.Duration(s.GetCPU().GetUsageUsec()) * time.Microsecond
		u.CPU = &cpu
	}
	if s.GetMemory() != nil {
		u.Memory = number(s.GetMemory().GetUsage())
	}
	if s.GetPids() != nil {
		u.PIDs = number(s.GetPids().GetCurrent())
	}
}

// readV1 adds the figures of the v1 controllers. The library takes the directory
// above a hierarchy and appends the controller's name, so a hierarchy that is
// mounted under another name stays unread.
func readV1(u *Usage, h *cgroups.Host, group string) error {
	var s v1.Metrics
	var errs []error
	if root, ok := above(h, "memory"); ok {
		errs = append(errs, cgroup1.NewMemory(root, cgroup1.IgnoreModules("memsw", "kmem", "kmem.tcp")).Stat(group, &s))
	}
	if root, ok := above(h, "pids"); ok {
		errs = append(errs, cgroup1.NewPids(root).Stat(group, &s))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if usage := s.GetMemory().GetUsage(); usage != nil {
		u.Memory = number(usage.GetUsage())
	}
	if s.GetPids() != nil {
		u.PIDs = number(s.GetPids().GetCurrent())
	}
	return nil
}

// above returns the directory above the v1 hierarchy of a controller.
func above(h *cgroups.Host, controller string) (string, bool) {
	path := h.Mountpoint(controller)
	return filepath.Dir(path), filepath.Base(path) == controller
}

func number(n uint64) *int64 {
	i := int64(n)
	return &i
}
