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
	"github.com/boxd/boxd/internal/oneline"
)

// A Sysctl is a setting of a network namespace.
type Sysctl struct {
	Path  string // below /proc/sys/net
	Value string
	// Lower means that each number of Value is an upper bound: a new namespace keeps
	// smaller numbers that it has by default or from the host.
	Lower bool
	// Optional means that the setting is skipped if the kernel lacks it.
	Optional bool
	// Since is the first kernel version, such as "6.8", on which each namespace has its
	// own value; before, the whole host has one. Empty means all kernels that boxes run on.
	Since string
}

// Sysctls are set in the network namespace of every box.
var Sysctls = []Sysctl{
	// A command without capabilities may listen on port 80.
	{Path: "ipv4/ip_unprivileged_port_start", Value: "0"},
	// If the host's kernel has IPv6 but the host has turned it off, a box still has ::1.
	{Path: "ipv6/conf/lo/disable_ipv6", Value: "0", Optional: true},

	// The other settings bound kernel memory that is charged to no cgroup.

	// The receive queue of a ping socket is not charged, and ping sockets are useless
	// with loopback alone. No group is in the range "1 0".
	{Path: "ipv4/ping_group_range", Value: "1 0"},
	// A transmit time stamp is delivered with a copy of the packet, whose queue is not
	// charged. 0 means time stamps without the copy (net-timestamp.rst, "OPT_TSONLY").
	{Path: "core/tstamp_allow_data", Value: "0", Since: "6.13"},
	// Memory for options of one socket: filters, multicast groups, TCP MD5 keys.
	{Path: "core/optmem_max", Value: "4096", Lower: true, Since: "6.8"},
	// Connections that wait for accept are created in a soft interrupt. 128 was the
	// kernel's default until 5.4.
	{Path: "core/somaxconn", Value: "128", Lower: true},
	{Path: "ipv4/tcp_max_tw_buckets", Value: "4096", Lower: true},
	// The whole host has one table of metrics of peers, in which a new entry replaces an
	// old one (tcpm_new in net/ipv4/tcp_metrics.c).
	{Path: "ipv4/tcp_no_metrics_save", Value: "1"},
	{Path: "ipv4/igmp_max_memberships", Value: "4", Lower: true, Optional: true}, // CONFIG_IP_MULTICAST
	{Path: "ipv4/igmp_max_msf", Value: "4", Lower: true, Optional: true},
	// Minimum, default and maximum. They matter where the kernel does not charge TCP
	// memory, and on every host for connections that are not yet accepted.
	{Path: "ipv4/tcp_rmem", Value: "4096 131072 1048576", Lower: true},
	{Path: "ipv4/tcp_wmem", Value: "4096 16384 1048576", Lower: true},
}

// HostWide is a setting that each box should have, but for which this kernel has only one
// value for the whole host, which is looser.
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
			present = oneline.Fold(string(text))
			return err
		}
		err := in(ns, read)
		if errors.Is(err, fs.ErrNotExist) {
			err = read() // in the host's namespace
		}
		switch {
		case errors.Is(err, fs.ErrNotExist): // the kernel does not have it
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
		// In a new namespace, a setting of the whole host is absent or read-only. So this
		// never changes the host's settings.
		if (s.Optional || s.Since != "") && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission)) {
			continue
		}
		if err != nil {
			return fmt.Errorf("setting net/%s to %q: %w", s.Path, s.Value, err)
		}
	}
	return nil
}

// openSysNet opens sys/net of a procfs of its own. /proc keeps an entry of each setting for each namespace
// that was set up through it, all under the same name, and the kernel compares them one by one
// (proc_sys_compare in fs/proc/proc_sysctl.c): beside 1,000 boxes a namespace took four times as long.
// Where no procfs can be mounted, for example in a container, it is the one of /proc.
func openSysNet() (*os.File, error) {
	proc, err := linux.NewMount("proc", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return openHostSysNet()
	}
	defer proc.Close()
	return linux.Openat2(proc, "sys/net", unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY})
}

// openHostSysNet opens /proc/sys/net and checks that it is on a procfs: a fake one would
// accept writes without effect (CVE-2019-19921).
func openHostSysNet() (*os.File, error) {
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

// apply sets s beneath dir, unless it already has the wanted value.
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
	present := oneline.Fold(string(text[:n]))
	if want := s.wanted(present); want != present {
		_, err = file.WriteAt([]byte(want), 0)
		return err
	}
	return nil
}

// wanted returns the value that the setting should have, given its present value.
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
