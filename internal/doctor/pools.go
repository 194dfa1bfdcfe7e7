package doctor

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/boxd/boxd/cgroups"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/rootfs"
)

// Pools that all processes of the host share, by path below /proc/sys. The kernel cannot reserve a
// part of them for a box, but the limits of a box bound its use.
const (
	poolPIDs   = "kernel/pid_max"
	poolFiles  = "fs/file-max"
	poolAIO    = "fs/aio-max-nr"
	poolPTY    = "kernel/pty/max"
	reservePTY = "kernel/pty/reserve"
	poolTCP    = "net/ipv4/tcp_mem"
	poolUDP    = "net/ipv4/udp_mem"
)

// pools reports for each pool how many boxes at the default limits would use it up. A pool is
// degraded if the host's memory is enough for more boxes than that.
func (f Facts) pools() []Check {
	const files = spec.DefaultPIDs * spec.DefaultOpenFiles
	byMemory := f.Memory / spec.DefaultMemory
	checks := []Check{
		f.pool(poolPIDs, f.number(poolPIDs, 0), spec.DefaultPIDs, "processes and threads", fmt.Sprint(byMemory*spec.DefaultPIDs)),
		f.pool(poolFiles, f.number(poolFiles, 0), files, "open files", fmt.Sprint(byMemory*files)),
		f.pool(poolPTY, f.number(poolPTY, 0)-f.number(reservePTY, 0), rootfs.MaxPTYs, "terminals",
			fmt.Sprint(byMemory*rootfs.MaxPTYs+f.number(reservePTY, 0))),
	}
	if value := f.Sysctls[poolAIO]; value != "" {
		checks = append(checks, Check{Name: sysctlName(poolAIO), Status: OK, Detail: value + ": boxes take none of it, io_setup is refused in them"})
	}
	// The sockets of one box can hold this much: on cgroup2 all of its memory.
	held, part := int64(spec.DefaultMemory), "all"
	if f.CgroupMode != string(cgroups.Unified) {
		held, part = held/cgroups.SocketShare, fmt.Sprintf("1/%d", cgroups.SocketShare)
	}
	if f.PageSize > 0 {
		for _, name := range []string{poolTCP, poolUDP} {
			pages := held / f.PageSize
			enough := byMemory * pages
			checks = append(checks, f.pool(name, f.number(name, 2), pages, "pages for sockets, "+part+" of its memory,",
				fmt.Sprintf("\"%d %d %d\", or give boxes less memory", enough/2, enough/4*3, enough)))
		}
	}
	return slices.DeleteFunc(checks, func(c Check) bool { return c.Name == "" })
}

// pool judges a pool of which a box can take each. With a pool of the size enough, the host runs out
// of memory first. The result is empty if the host has no such pool.
func (f Facts) pool(path string, size, each int64, unit, enough string) Check {
	value := strings.Join(strings.Fields(f.Sysctls[path]), " ")
	if value == "" {
		return Check{}
	}
	boxes, byMemory := max(size, 0)/each, f.Memory/spec.DefaultMemory
	c := Check{Name: sysctlName(path), Status: OK, Detail: fmt.Sprintf("%s: enough for %d boxes at default limits (%d %s each)", value, boxes, each, unit)}
	if size == math.MaxInt64 {
		c.Detail = value + ": unlimited"
	}
	if boxes < byMemory || boxes < 1 {
		c.Status = Degraded
		c.Detail += fmt.Sprintf("; memory is enough for %d", byMemory)
		c.Mend = fmt.Sprintf("set sysctl %s to %s", sysctlName(path), enough)
		value, _, _ := strings.Cut(enough, ", ")
		c.set = []string{sysctlName(path) + "=" + value}
	}
	return c
}

// number returns one of the numbers of a sysctl, or 0.
func (f Facts) number(path string, field int) int64 {
	fields := strings.Fields(f.Sysctls[path])
	if field >= len(fields) {
		return 0
	}
	n, _ := strconv.ParseInt(fields[field], 10, 64)
	return n
}

// sysctlName returns the name that sysctl(8) uses for a path below /proc/sys.
func sysctlName(path string) string { return strings.ReplaceAll(path, "/", ".") }

// network lists settings that a box's network namespace should have, but that this kernel has once
// for the host. boxd does not change them, because they hold for the host's own programs too.
func (f Facts) network() Check {
	c := Check{Name: "network settings", Status: OK, Detail: "each box has its own"}
	switch {
	case f.UID != 0:
		return Check{Name: c.Name, Status: Unknown, Detail: "only root can create a network namespace"}
	case f.HostWideError != nil:
		return Check{Name: c.Name, Status: Unknown, Detail: f.HostWideError.Error()}
	case len(f.HostWide) == 0:
		return c
	}
	var have, set []string
	for _, h := range f.HostWide {
		name := "net." + sysctlName(h.Path)
		have = append(have, fmt.Sprintf("%s is %s", name, h.Present))
		c.set = append(c.set, name+"="+h.Value)
		set = append(set, fmt.Sprintf("%s=%s (each box has it since Linux %s)", name, h.Value, h.Since))
	}
	c.Status = Degraded
	c.Detail = "this kernel has them once for the host, so boxes can use kernel memory that no cgroup is charged for: " + strings.Join(have, ", ")
	c.Mend = "set sysctl " + strings.Join(set, ", ")
	return c
}
