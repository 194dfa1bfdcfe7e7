package testutil

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// since is the first kernel that has a feature.
type since struct {
	major, minor int
	cgroup       cgroupMode // zero: in every mode
}

// features says where each feature that a test may ask for begins. A name that
// has no row is expected everywhere. Versions are those of the man pages and of
// Documentation/admin-guide/cgroup-v2.rst.
var features = map[string]since{
	"pidfd":                        {5, 3, 0},
	"mount API":                    {5, 2, 0},
	"openat2":                      {5, 6, 0},
	"clone3 into cgroup":           {5, 7, 0},
	"close_range":                  {5, 9, 0},
	"overlayfs in user namespace":  {5, 11, 0},
	"mount_setattr":                {5, 12, 0},
	"id-mapped mounts":             {5, 12, 0},
	"cgroup.kill":                  {5, 14, 0},
	"id-mapped overlayfs layers":   {5, 19, 0},
	"memory.peak":                  {5, 19, cgroupV2},
	"pids.peak":                    {6, 1, cgroupV2},
	"id-mapped tmpfs":              {6, 3, 0},
	"tmpfs user xattrs":            {6, 6, 0},
	"memory.swap.peak":             {6, 5, cgroupV2},
	"cgroup v2 controllers":        {4, 5, cgroupV2},
	"memory.oom.group":             {4, 19, cgroupV2},
	"cgroup v1 controllers":        {2, 6, cgroupV1},
	"memory.max_usage_in_bytes v1": {2, 6, cgroupV1},
}

// cgroupMode is where the memory controller lives.
type cgroupMode int

const (
	cgroupV2 cgroupMode = iota + 1
	cgroupV1            // hybrid included
)

func (m cgroupMode) String() string {
	return map[cgroupMode]string{cgroupV2: "cgroup v2", cgroupV1: "cgroup v1 or hybrid"}[m]
}

// host is the kind of machine that decides what can be expected.
type host struct {
	major, minor int
	cgroup       cgroupMode
}

// expectedAbsent says whether h is too old, or of the wrong kind, for feature
// name. why is the reason for the answer.
func expectedAbsent(name string, h host) (why string, absent bool) {
	f, ok := features[name]
	if !ok {
		return "no row in internal/testutil/features.go says otherwise", false
	}
	if f.cgroup != 0 && f.cgroup != h.cgroup {
		return fmt.Sprintf("exists on %v, this host has %v", f.cgroup, h.cgroup), true
	}
	why = fmt.Sprintf("since Linux %d.%d, this is %d.%d", f.major, f.minor, h.major, h.minor)
	return why, h.major < f.major || h.major == f.major && h.minor < f.minor
}

// thisHost is the machine that the test runs on.
var thisHost = sync.OnceValue(func() host {
	var h host
	var uts syscall.Utsname
	if syscall.Uname(&uts) == nil {
		h.major, h.minor = parseRelease(charsToString(uts.Release[:]))
	}
	h.cgroup = cgroupV1
	controllers, err := os.ReadFile("/sys/fs/cgroup/cgroup.controllers")
	if err == nil && strings.Contains(string(controllers), "memory") {
		h.cgroup = cgroupV2
	}
	return h
})

// parseRelease reads "6.1.0-56-cloud-amd64" as 6, 1. What cannot be read is 0.
func parseRelease(release string) (major, minor int) {
	parts := strings.FieldsFunc(release, func(r rune) bool { return r < '0' || r > '9' })
	if len(parts) > 1 {
		major, _ = strconv.Atoi(parts[0])
		minor, _ = strconv.Atoi(parts[1])
	}
	return major, minor
}

// charsToString takes a NUL-terminated field of struct utsname, whose element
// type differs between architectures.
func charsToString[T int8 | uint8](chars []T) string {
	var b strings.Builder
	for _, c := range chars {
		if c == 0 {
			break
		}
		b.WriteByte(byte(c))
	}
	return b.String()
}
