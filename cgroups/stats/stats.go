// Package stats reads the current usage of a whole box, PID 1 included, with
// github.com/containerd/cgroups/v3.
//
// Linking that library makes every process start 2.4 ms later and take 8 MB more, so neither
// boxd nor boxd-init links this package. It is for an engine that drives containerd, whose
// metrics come in the library's types. For the usage of one command, see cgroups.SlotStats.
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

	"github.com/boxd/boxd/cgroups"
)

// Usage is the current usage of a box. A figure that this host does not provide is nil.
type Usage struct {
	Memory *int64         // bytes, page cache included
	PIDs   *int64         // processes and threads
	CPU    *time.Duration // CPU time since the box was created
}

// Read reads the usage of box id through the mount points at which h was detected, which must
// still show the cgroups. It needs no privilege.
func Read(h *cgroups.Host, id string) (Usage, error) {
	group := cgroups.Path(id)
	u, err := readV2(h.Mountpoint(""), group)
	if err == nil && h.Mode() != cgroups.Unified {
		err = readV1(&u, h, group)
	}
	if err != nil {
		return u, fmt.Errorf("reading the usage of box %q: %w", id, err)
	}
	return u, nil
}

// readV2 reads the figures of cgroup2: at least CPU time, which needs no controller.
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
	if s.GetCPU() != nil {
		u.CPU = new(time.Duration(s.GetCPU().GetUsageUsec()) * time.Microsecond)
	}
	// The library returns zeros if the controller and its files are missing.
	if s.GetMemory() != nil && hasFile(mountpoint, group, "memory.current") {
		u.Memory = new(int64(s.GetMemory().GetUsage()))
	}
	if s.GetPids() != nil && hasFile(mountpoint, group, "pids.current") {
		u.PIDs = new(int64(s.GetPids().GetCurrent()))
	}
	return u, nil
}

func hasFile(path ...string) bool {
	_, err := os.Stat(filepath.Join(path...))
	return err == nil
}

// readV1 adds the figures of the v1 controllers. The library takes the directory above a
// hierarchy and appends the controller's name, so readV1 skips a hierarchy that is mounted
// under another name.
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
		u.Memory = new(int64(usage.GetUsage()))
	}
	if s.GetPids() != nil {
		u.PIDs = new(int64(s.GetPids().GetCurrent()))
	}
	return nil
}

// above returns the directory above the v1 hierarchy of a controller.
func above(h *cgroups.Host, controller string) (string, bool) {
	path := h.Mountpoint(controller)
	return filepath.Dir(path), filepath.Base(path) == controller
}
