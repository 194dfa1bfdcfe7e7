package doctor

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// kernelVersion is major, minor and patch level of a kernel.
type kernelVersion [3]int

// parseRelease reads the numbers at the start of a kernel release. The rest is the distribution's
// own.
func parseRelease(release string) (kernelVersion, bool) {
	var v kernelVersion
	for i := range v {
		digits := release[:len(release)-len(strings.TrimLeft(release, "0123456789"))]
		n, err := strconv.Atoi(digits)
		if err != nil {
			return v, i > 1 // a release such as "6.1-rc3" has no patch level
		}
		v[i] = n
		release = strings.TrimPrefix(release[len(digits):], ".")
	}
	return v, true
}

var debianVersion = regexp.MustCompile(`Debian ([0-9]+\.[0-9]+\.[0-9]+)`)

// upstream finds the version of kernel.org in the text of the distribution: Debian has
// "Debian 6.1.170-1" in /proc/version, Ubuntu "Ubuntu 6.8.0-31.31-generic 6.8.1" in
// /proc/version_signature.
func upstream(version, signature string) string {
	if fields := strings.Fields(signature); len(fields) == 3 && fields[0] == "Ubuntu" {
		return fields[2]
	}
	// The last one: before it stands the version of Debian's compiler.
	if m := debianVersion.FindAllStringSubmatch(version, -1); m != nil {
		return m[len(m)-1][1]
	}
	return ""
}

func (v kernelVersion) less(w kernelVersion) bool {
	return slices.Compare(v[:], w[:]) < 0
}

// minKernel is the first kernel with cgroup.kill, the newest feature that every box needs
// (Documentation/admin-guide/cgroup-v2.rst).
var minKernel = kernelVersion{5, 14, 0}

// hole is a kernel flaw with which code in a box could write to files of the host that it may only
// read.
type hole struct {
	name  string
	since kernelVersion
	// fixed are the first releases with the correction, one for each stable series that was
	// maintained at the time. Every later series has it from the start; series in between never
	// got it.
	fixed  []kernelVersion
	shield string // what boxd does about it
}

// holes matter because all boxes share the host's page cache. The versions are those of
// kernel.org's CVE records.
var holes = []hole{
	{
		name:   "CVE-2022-0847 (Dirty Pipe)",
		since:  kernelVersion{5, 8, 0},
		fixed:  []kernelVersion{{5, 10, 102}, {5, 15, 25}, {5, 16, 11}},
		shield: "nothing in boxd shields the host from it",
	},
	{
		// The corrections of Copy Fail were released shortly before those of Dirty Frag, so these
		// releases have both.
		name:   "CVE-2026-31431 (Copy Fail), CVE-2026-43284 (Dirty Frag)",
		since:  kernelVersion{4, 11, 0},
		fixed:  []kernelVersion{{5, 10, 255}, {5, 15, 205}, {6, 1, 171}, {6, 6, 138}, {6, 12, 87}, {6, 18, 28}, {7, 0, 5}},
		shield: "boxes cannot open AF_ALG sockets nor configure IPsec",
	},
}

// affects reports whether a kernel of this version has the flaw, unless the distribution has
// corrected it.
func (h hole) affects(v kernelVersion) bool {
	if v.less(h.since) {
		return false
	}
	for _, fixed := range h.fixed {
		if v[0] == fixed[0] && v[1] == fixed[1] {
			return v.less(fixed)
		}
	}
	return v.less(h.fixed[len(h.fixed)-1])
}

// knownHoles names the flaws that a kernel of this version had when it was released.
func knownHoles(v kernelVersion) string {
	var names []string
	for _, h := range holes {
		if h.affects(v) {
			names = append(names, fmt.Sprintf("%s: %s", h.name, h.shield))
		}
	}
	return strings.Join(names, "; ")
}
