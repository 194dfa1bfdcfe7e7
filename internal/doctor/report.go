package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/boxd/boxd/cgroups"
	"github.com/boxd/boxd/internal/leftover"
	"github.com/boxd/boxd/internal/oneline"
)

// Status is the outcome of a check.
type Status string

// The outcomes, from good to bad.
const (
	OK       Status = "ok"
	Unknown  Status = "unknown"  // could not be examined
	Degraded Status = "degraded" // boxes can be built, but are weaker in this respect
	Failed   Status = "failed"   // no box can be built
	Absent   Status = "absent"   // not on this host, and nobody has asked for it
)

// Check is one line of a report.
type Check struct {
	Name   string `json:"name"`
	Status Status `json:"status"`
	Detail string `json:"detail,omitempty"`
	Mend   string `json:"mend,omitempty"` // what to do about it

	// Cause is the reason on this host, and Command fixes it; see [Report.Explain].
	Cause   string `json:"cause,omitempty"`
	Command string `json:"command,omitempty"`

	set []string // settings of sysctl(8) that would fix it
}

// Report is the doctor's judgement. OK means that a box was built and a command ran in it.
type Report struct {
	OK      bool   `json:"ok"`
	Version string `json:"version"`
	Kernel  string `json:"kernel"`
	Machine string `json:"machine"`
	// Surroundings describes where the doctor runs, in one line; see [Report.Explain].
	Surroundings string  `json:"surroundings,omitempty"`
	Checks       []Check `json:"checks"`
}

// NewReport judges facts.
func NewReport(f Facts) Report {
	r := Report{OK: f.Box.Error == nil, Version: f.Version, Kernel: f.Release, Machine: f.Machine}
	r.Checks = append(r.Checks, f.kernel(), f.flaws(), f.privilege(), f.cgroups())
	for _, e := range f.Enforcement {
		r.Checks = append(r.Checks, limit(e))
	}
	r.Checks = append(r.Checks, f.userNamespaces())
	for _, need := range needs {
		r.Checks = append(r.Checks, f.feature(need))
	}
	r.Checks = append(r.Checks, f.network())
	r.Checks = append(r.Checks, f.pools()...)
	r.Checks = append(r.Checks, f.workspaces())
	r.Checks = append(r.Checks, f.images()...)
	r.Checks = append(r.Checks, f.init(), f.box())
	r.Checks = append(r.Checks, f.engines()...)
	for _, l := range f.Leftovers {
		r.Checks = append(r.Checks, f.leftover(l))
	}
	return r
}

func (f Facts) kernel() Check {
	c := Check{Name: "kernel", Status: OK, Detail: f.Release + " " + f.Machine}
	if f.Upstream != "" {
		c.Detail += ", made from " + f.Upstream
	}
	v, ok := parseRelease(f.Release)
	switch {
	case !ok:
		c.Status, c.Mend = Unknown, "the release has no version number"
	case v.less(minKernel):
		c.Status, c.Mend = Failed, fmt.Sprintf("boxes need Linux %d.%d or newer", minKernel[0], minKernel[1])
	}
	return c
}

// flaws never fails, because only the distribution knows what it has corrected.
func (f Facts) flaws() Check {
	c := Check{Name: "kernel flaws", Status: OK, Detail: "none known to boxd for this version"}
	v, ok := parseRelease(cmp.Or(f.Upstream, f.Release))
	if !ok {
		c.Status, c.Detail = Unknown, ""
		return c
	}
	if list := knownHoles(v); list != "" {
		c.Status, c.Detail = Degraded, "unless the distribution has corrected it, this version has "+list
		c.Mend = "install the distribution's newest kernel and look the numbers up in its security tracker"
	}
	return c
}

func (f Facts) privilege() Check {
	if f.UID != 0 {
		return Check{Name: "privilege", Status: Failed, Detail: fmt.Sprintf("uid %d", f.UID), Mend: "run as root, which builds the boxes; checks that take root are unknown below"}
	}
	return Check{Name: "privilege", Status: OK, Detail: "root"}
}

func (f Facts) cgroups() Check {
	c := Check{Name: "cgroups", Status: OK, Detail: f.CgroupMode}
	const mend = `boot with systemd.unified_cgroup_hierarchy=1 on the kernel command line`
	switch cgroups.Mode(f.CgroupMode) {
	case cgroups.Hybrid:
		c.Status, c.Mend = Degraded, mend
		c.Detail += ": limits are placed on the controllers of cgroup v1, processes on cgroup2"
	case cgroups.Legacy:
		c.Status, c.Mend = Degraded, mend
		c.Detail += ": limits are placed on the controllers of cgroup v1, processes on a private mount of cgroup2"
	}
	if f.CgroupError != nil {
		return Check{Name: "cgroups", Status: Failed, Detail: f.CgroupError.Error(), Mend: "mount cgroup2 at /sys/fs/cgroup"}
	}
	return c
}

// limit judges how one limit is enforced. If it is not, a box that asks for it cannot be built,
// unless --allow-degraded is given.
func limit(e cgroups.Enforcement) Check {
	c := Check{Name: e.Limit + " limit", Status: OK, Detail: e.By, Mend: e.Mend}
	if e.Note != "" {
		c.Status = Degraded
		if c.Detail != "" {
			c.Detail += ": "
		}
		c.Detail += e.Note
	}
	if !e.Enforced {
		c.Status, c.Detail = Degraded, "not enforced: "+e.Note
	}
	return c
}

// workspaces judges whether sessions of the daemon can have workspaces. boxd run needs none.
func (f Facts) workspaces() Check {
	c := Check{Name: "workspaces", Status: OK, Detail: f.StateDir + " can be id-mapped into boxes"}
	switch {
	case f.WorkspaceError == nil:
	case certainNo(f.WorkspaceError):
		c.Status, c.Detail = Degraded, f.WorkspaceError.Error()
		c.Mend = "put the daemon's state directory on ext4, xfs or btrfs (tmpfs needs Linux 6.3): otherwise its sessions have no workspace, and it is not ready"
	default:
		c.Status, c.Detail = Unknown, f.WorkspaceError.Error()
	}
	return c
}

func (f Facts) init() Check {
	switch {
	case f.InitError != nil:
		return Check{Name: "boxd-init", Status: Failed, Detail: f.InitError.Error(), Mend: "install boxd, boxd-init, boxd-agent and boxd-unpacker from one build, side by side"}
	case errors.Is(f.Box.Error, errNotRoot):
		return Check{Name: "boxd-init", Status: Unknown, Detail: f.InitPath + ": its version is unknown, as asking for it takes root"}
	default:
		return Check{Name: "boxd-init", Status: OK, Detail: f.InitPath + " is of the same version"}
	}
}

func (f Facts) box() Check {
	switch {
	case f.Box.Error == nil:
		return Check{Name: "box", Status: OK, Detail: fmt.Sprintf("built in %s, ran a command in %s", millis(f.Box.Create), millis(f.Box.Run))}
	case errors.Is(f.Box.Error, errNotRoot):
		return Check{Name: "box", Status: Failed, Detail: f.Box.Error.Error(), Mend: "run as root"}
	case f.Box.Degraded:
		return Check{Name: "box", Status: Failed, Detail: f.Box.Error.Error(), Mend: "boxes can be built with --allow-degraded only"}
	}
	return Check{Name: "box", Status: Failed, Detail: f.Box.Error.Error(), Mend: "see what is not ok above"}
}

// leftover reports what launchers could not remove. Boxes can be built nevertheless.
func (f Facts) leftover(l *leftover.Record) Check {
	boxes := slices.Sorted(maps.Keys(l.Reasons))
	var reasons []string
	for _, box := range boxes[:min(len(boxes), maxLeftovers)] {
		reasons = append(reasons, l.Reasons[box])
	}
	if n := len(boxes) - len(reasons); n > 0 {
		reasons = append(reasons, fmt.Sprintf("%d more", n))
	}
	return Check{Name: "leftover", Status: Degraded,
		Detail: fmt.Sprintf("%s, of a launcher that was killed, could not be removed in %d tries: %s", l.Instance, l.Tries, strings.Join(reasons, "; ")),
		Mend: fmt.Sprintf("remove what holds it: a process in state D waits for a device or a network file system; EBUSY can be a mount (umount it), "+
			"EPERM an immutable file (chattr -i). The next launcher from %s on tries again; rm %s makes it try at once",
			l.Next.UTC().Format(time.RFC3339), leftover.Path(f.RunDir, l.Instance))}
}

// maxLeftovers bounds how many boxes of one instance a report names.
const maxLeftovers = 20

func millis(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000) }

// certainNo reports whether a feature certainly does not exist, rather than could not be examined.
func certainNo(err error) bool { return errors.Is(err, errors.ErrUnsupported) }

// WriteText writes r for people. paint gives the text of a status its colour.
func (r Report) WriteText(w io.Writer, paint func(text string, s Status) string) error {
	var b strings.Builder
	fmt.Fprintf(&b, "boxd %s on Linux %s %s\n\n", r.Version, r.Kernel, r.Machine)
	if r.Surroundings != "" {
		fmt.Fprintf(&b, "This %s.\n\n", r.Surroundings)
	}
	for _, c := range r.Checks {
		fmt.Fprintf(&b, "%s %-19s %s\n", paint(fmt.Sprintf("%-9s", c.Status), c.Status), c.Name, oneline.Text(c.Detail))
		if c.Mend != "" {
			fmt.Fprintf(&b, "%-29s mend: %s\n", "", c.Mend)
		}
		if c.Cause != "" {
			fmt.Fprintf(&b, "%-29s because: %s\n", "", oneline.Text(c.Cause))
		}
		if c.Command != "" {
			fmt.Fprintf(&b, "%-29s do: %s\n", "", c.Command)
		}
	}
	if r.OK {
		b.WriteString("\nBoxes can be built here.\n")
	} else {
		b.WriteString("\nBoxes cannot be built here.\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}
