package netns

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// A Sysctl is a setting of a network namespace.
type Sysctl struct {
	Path  string // below /proc/sys/net
	Value string
	// Lower: each number of Value is a bound. A smaller one that a new namespace
	// has already, by default or from the host, stays.
	Lower bool
	// Optional: kernels without the feature do without.
	Optional bool
	// Since is the first kernel, as "6.8", on which each namespace has the setting;
	// before, the whole host has one. Empty: all kernels that boxes run on.
	Since string
}

// Sysctls are set in the network namespace of every box.
var Sysctls = []Sysctl{
	// A command without capabilities may listen on port 80.
	{Path: "ipv4/ip_unprivileged_port_start", Value: "0"},
	// Where the host has IPv6 in its kernel but off, a box still has ::1.
	{Path: "ipv6/conf/lo/disable_ipv6", Value: "0", Optional: true},

	// The rest bounds kernel memory that no cgroup is charged for.

	// A ping socket has a receive queue without a memory account, and with loopback
	// alone it is of no use. "1 0" is the range that no group is in.
	{Path: "ipv4/ping_group_range", Value: "1 0"},
	// The copies of sent packets that a time stamp comes with queue uncharged. 0
	// leaves the time stamp without the copy (net-timestamp.rst, "OPT_TSONLY").
	{Path: "core/tstamp_allow_data", Value: "0", Since: "6.13"},
	// Options of one socket: filters, multicast groups, TCP MD5 keys.
	{Path: "core/optmem_max", Value: "4096", Lower: true, Since: "6.8"},
	// Connections that wait to be accepted are made in a soft interrupt. 128 was
	// the kernel's own default until 5.4.
	{Path: "core/somaxconn", Value: "128", Lower: true},
	{Path: "ipv4/tcp_max_tw_buckets", Value: "4096", Lower: true},
	// What is remembered of a connection's other end is in one table of the host, in
	// which a new entry pushes out an old one (tcpm_new in net/ipv4/tcp_metrics.c).
	{Path: "ipv4/tcp_no_metrics_save", Value: "1"},
	{Path: "ipv4/igmp_max_memberships", Value: "4", Lower: true, Optional: true}, // CONFIG_IP_MULTICAST
	{Path: "ipv4/igmp_max_msf", Value: "4", Lower: true, Optional: true},
	// Minimum, default and maximum. They matter where TCP is not charged, and for
	// connections that are not accepted yet everywhere.
	{Path: "ipv4/tcp_rmem", Value: "4096 131072 1048576", Lower: true},
	{Path: "ipv4/tcp_wmem", Value: "4096 16384 1048576", Lower: true},
	// What was closed with data unsent is given up after one attempt; 0 means 8.
	{Path: "ipv4/tcp_orphan_retries", Value: "1"},
}

// HostWide is a setting that a box should have and this kernel has for the whole
// host only, where it is looser.
type HostWide struct {
	Sysctl
	Present string // the host's value
}

// FindHostWide returns the settings that boxes on this host lack. The caller must
// be in the host's network namespace.
func FindHostWide() (found []HostWide, err error) {
	ns, err := New()
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	for _, s := range Sysctls {
		if s.Since == "" {
			continue
		}
		var present string
		read := func() error {
			text, err := os.ReadFile("/proc/sys/net/" + s.Path)
			present = oneSpace(text)
			return err
		}
		err := in(ns, read)
		if errors.Is(err, fs.ErrNotExist) {
			err = read() // in the host's namespace
		}
		switch {
		case errors.Is(err, fs.ErrNotExist): // the kernel has no such thing
		case err != nil:
			return nil, err
		case s.wanted(present) != present:
			found = append(found, HostWide{s, present})
		}
	}
	return found, nil
}

// writeSysctls writes Sysctls. What /proc/sys/net shows depends on the thread
// that opens it.
func writeSysctls() error {
	dir, err := openSysNet()
	if err != nil {
		return err
	}
	defer dir.Close()
	for _, s := range Sysctls {
		err := s.apply(dir)
		// What has no per-namespace form is absent from a new namespace, or
		// read-only there. So nothing here reaches the host's own settings.
		if (s.Optional || s.Since != "") && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission)) {
			continue
		}
		if err != nil {
			return fmt.Errorf("setting net/%s to %q: %w", s.Path, s.Value, err)
		}
	}
	return nil
}

// openSysNet opens /proc/sys/net and makes sure that it is on a procfs: a fake
// one would swallow what is written (CVE-2019-19921).
func openSysNet() (*os.File, error) {
	dir, err := linux.Openat2(nil, "/proc/sys/net", unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY})
	if err != nil {
		return nil, err
	}
	st, err := linux.Fstatfs(dir)
	if err == nil && st.Type != unix.PROC_SUPER_MAGIC {
		err = &os.PathError{Op: "checking", Path: "/proc/sys/net", Err: errors.New("not on a procfs")}
	}
	if err != nil {
		dir.Close()
		return nil, err
	}
	return dir, nil
}

// apply sets s beneath dir unless it is as wanted already.
func (s Sysctl) apply(dir *os.File) error {
	file, err := linux.Openat2(dir, s.Path, unix.OpenHow{
		Flags:   unix.O_RDWR,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return err
	}
	defer file.Close()
	var text [128]byte
	n, err := file.ReadAt(text[:], 0)
	if err != nil && err != io.EOF {
		return err
	}
	present := oneSpace(text[:n])
	if want := s.wanted(present); want != present {
		_, err = file.WriteAt([]byte(want), 0)
		return err
	}
	return nil
}

// wanted is what the setting should be where it is present now.
func (s Sysctl) wanted(present string) string {
	want, have := strings.Fields(s.Value), strings.Fields(present)
	if !s.Lower || len(want) != len(have) {
		return s.Value
	}
	for i := range want {
		w, werr := strconv.ParseInt(want[i], 10, 64)
		h, herr := strconv.ParseInt(have[i], 10, 64)
		if werr == nil && herr == nil && h < w {
			want[i] = have[i]
		}
	}
	return strings.Join(want, " ")
}

// oneSpace puts one space between the fields of a file of /proc/sys.
func oneSpace(text []byte) string { return strings.Join(strings.Fields(string(text)), " ") }
