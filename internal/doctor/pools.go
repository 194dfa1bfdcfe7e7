package doctor

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/boxd/boxd/cgroups"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/rootfs"
)

// Pools that all processes of the host share, by path below /proc/sys. The kernel has no
// part of them for a box alone; what one box can take is bounded by its limits.
const (
	poolPIDs   = "kernel/pid_max"
	poolFiles  = "fs/file-max"
	poolAIO    = "fs/aio-max-nr"
	poolPTY    = "kernel/pty/max"
	reservePTY = "kernel/pty/reserve"
	poolTCP    = "net/ipv4/tcp_mem"
	poolUDP    = "net/ipv4/udp_mem"
)

// pools says of each pool how many boxes at the default limits would use it up. That is
// weaker than it could be where the memory of this host is enough for more of them.
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
	// What the sockets of one box can hold, in pages: with cgroup2 all of its memory.
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
	var known []Check
	for _, c := range checks {
		if c.Name != "" {
			known = append(known, c)
		}
	}
	return known
}

// pool judges one pool of which a box can take each. enough is the value with which memory
// is used up first.
func (f Facts) pool(path string, size, each int64, unit, enough string) Check {
	value := strings.Join(strings.Fields(f.Sysctls[path]), " ")
	if value == "" {
		return Check{}
	}
	boxes, byMemory := max(size, 0)/each, f.Memory/spec.DefaultMemory
	c := Check{Name: sysctlName(path), Status: OK, Detail: fmt.Sprintf("%s: enough for %d boxes at default limits (%d %s each)", value, boxes, each, unit)}
	if size == math.MaxInt64 {
		c.Detail = value + ": without end"
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

// number returns a number of a sysctl that has several, 0 if there is none.
func (f Facts) number(path string, field int) int64 {
	fields := strings.Fields(f.Sysctls[path])
	if field >= len(fields) {
		return 0
	}
	n, _ := strconv.ParseInt(fields[field], 10, 64)
	return n
}

// sysctlName is the name that sysctl(8) has for a path below /proc/sys.
func sysctlName(path string) string { return strings.ReplaceAll(path, "/", ".") }

// network names what a box's network namespace should have and this kernel has for the
// whole host. boxd leaves such settings alone: they are those of the host's programs too.
func (f Facts) network() Check {
	c := Check{Name: "network settings", Status: OK, Detail: "each box has its own"}
	switch {
	case f.UID != 0:
		return Check{Name: c.Name, Status: Unknown, Detail: "only root can make a network namespace"}
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
	c.Detail = "of the whole host with this kernel, so that boxes can make it hold memory that nobody is charged for: " + strings.Join(have, ", ")
	c.Mend = "set sysctl " + strings.Join(set, ", ")
	return c
}
