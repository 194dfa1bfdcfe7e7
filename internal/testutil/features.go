package testutil

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// since is the first kernel that has a feature.
type since struct {
	major, minor int
	cgroup       cgroupMode // zero: in every mode
	onDisk       bool       // only with /usr on a file system that can be id-mapped
}

// features maps each feature that a test may ask for to the first kernel that has it. A name without a
// row is expected everywhere. The versions are those of the manual pages and of
// Documentation/admin-guide/cgroup-v2.rst.
var features = map[string]since{
	"pidfd":                        {major: 5, minor: 3},
	"mount API":                    {major: 5, minor: 2},
	"openat2":                      {major: 5, minor: 6},
	"clone3 into cgroup":           {major: 5, minor: 7},
	"close_range":                  {major: 5, minor: 9},
	"overlayfs in user namespace":  {major: 5, minor: 11},
	"mount_setattr":                {major: 5, minor: 12},
	"id-mapped mounts":             {major: 5, minor: 12},
	"id-mapped root file system":   {major: 5, minor: 12, onDisk: true},
	"overlay of id-mapped layers":  {major: 5, minor: 19, onDisk: true},
	"cgroup.kill":                  {major: 5, minor: 14},
	"id-mapped overlayfs layers":   {major: 5, minor: 19},
	"memory.peak":                  {major: 5, minor: 19, cgroup: cgroupV2},
	"pids.peak":                    {major: 6, minor: 1, cgroup: cgroupV2},
	"id-mapped tmpfs":              {major: 6, minor: 3},
	"tmpfs user xattrs":            {major: 6, minor: 6},
	"memory.swap.peak":             {major: 6, minor: 5, cgroup: cgroupV2},
	"cgroup v2 controllers":        {major: 4, minor: 5, cgroup: cgroupV2},
	"memory.oom.group":             {major: 4, minor: 19, cgroup: cgroupV2},
	"cgroup v1 controllers":        {major: 2, minor: 6, cgroup: cgroupV1},
	"memory.max_usage_in_bytes v1": {major: 2, minor: 6, cgroup: cgroupV1},
	"engine oci with gvisor":       {major: 2, minor: 6, cgroup: cgroupV1}, // untested elsewhere
}

// cgroupMode says where the memory controller is.
type cgroupMode int

const (
	cgroupV2 cgroupMode = iota + 1
	cgroupV1            // hybrid included
)

func (m cgroupMode) String() string {
	return map[cgroupMode]string{cgroupV2: "cgroup v2", cgroupV1: "cgroup v1 or hybrid"}[m]
}

// host is the kind of machine, which decides what tests can expect.
type host struct {
	major, minor int
	cgroup       cgroupMode
	usr          string // type of the file system of /usr if no kernel id-maps it
}

// expectedAbsent reports whether h is too old for the feature name, or of the wrong kind, and why or
// why not.
func expectedAbsent(name string, h host) (why string, absent bool) {
	f, ok := features[name]
	if !ok {
		return "no row in internal/testutil/features.go says otherwise", false
	}
	if f.cgroup != 0 && f.cgroup != h.cgroup {
		return fmt.Sprintf("exists on %v, this host has %v", f.cgroup, h.cgroup), true
	}
	if f.onDisk && h.usr != "" {
		return "not on " + h.usr + ", which /usr is on here", true
	}
	why = fmt.Sprintf("since Linux %d.%d, this is %d.%d", f.major, f.minor, h.major, h.minor)
	return why, h.major < f.major || h.major == f.major && h.minor < f.minor
}

// neverMapped are file systems without FS_ALLOW_IDMAP, by the magic number of statfs(2). virtiofs has
// the number of FUSE; since Linux 6.12 it can be id-mapped, if its server agrees.
var neverMapped = map[int64]string{
	0x794c7630: "overlayfs",
	0x65735546: "FUSE or virtiofs",
	0x01021997: "9p",
	0x6969:     "NFS",
}

// thisHost is the machine that the test runs on.
var thisHost = sync.OnceValue(func() host {
	var h host
	var uts unix.Utsname
	if unix.Uname(&uts) == nil {
		h.major, h.minor = parseRelease(unix.ByteSliceToString(uts.Release[:]))
	}
	h.cgroup = cgroupV1
	controllers, err := os.ReadFile("/sys/fs/cgroup/cgroup.controllers")
	if err == nil && strings.Contains(string(controllers), "memory") {
		h.cgroup = cgroupV2
	}
	var fs unix.Statfs_t
	if unix.Statfs("/usr", &fs) == nil {
		h.usr = neverMapped[int64(fs.Type)]
	}
	return h
})

// parseRelease reads "6.1.0-56-cloud-amd64" as 6, 1. A number that cannot be read is 0.
func parseRelease(release string) (major, minor int) {
	parts := strings.FieldsFunc(release, func(r rune) bool { return r < '0' || r > '9' })
	if len(parts) > 1 {
		major, _ = strconv.Atoi(parts[0])
		minor, _ = strconv.Atoi(parts[1])
	}
	return major, minor
}

// Lacks reports whether a host of this kind has no such feature, for tests that expect a refusal then.
// [RequireFeature] is for tests that cannot run without the feature.
func Lacks(feature string) bool {
	_, absent := expectedAbsent(feature, thisHost())
	return absent
}
