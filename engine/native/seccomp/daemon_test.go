package seccomp

import (
	"testing"

	"golang.org/x/sys/unix"
)

func everyDaemonCall() (calls []call) {
	allowed, _, byArguments := daemonCalls()
	for _, g := range allowed {
		calls = append(calls, g.calls...)
	}
	for _, c := range byArguments {
		calls = append(calls, c.call)
	}
	return calls
}

// TestDaemonTables: each call has one place.
func TestDaemonTables(t *testing.T) {
	listed := map[string]bool{}
	for _, c := range everyDaemonCall() {
		if listed[c.name] {
			t.Errorf("%s is listed twice", c.name)
		}
		listed[c.name] = true
	}
}

// TestDaemonVerdicts: every number that is not listed is ENOSYS, on every architecture, and
// arguments decide as they should.
func TestDaemonVerdicts(t *testing.T) {
	for goarch, a := range arches {
		p := a.daemonProgram()
		if len(p) > 4096 {
			t.Errorf("%s: %d instructions", goarch, len(p))
		}
		known := map[int]call{}
		checks := map[string]bool{}
		for _, c := range everyDaemonCall() {
			known[a.number(c)] = c
		}
		for _, c := range daemonChecked {
			checks[c.name] = true
		}
		wants := func(what string, d data, want verdict) {
			t.Helper()
			if got, _, err := run(p, d); err != nil || got != want {
				t.Errorf("%s: %s: %v, %v, want %v", goarch, what, got, err, want)
			}
		}
		for nr := range 700 {
			c, ok := known[nr]
			switch {
			case !ok:
				wants("an unlisted call", data{nr: uint32(nr), arch: a.audit}, enosys)
			case !checks[c.name]:
				wants(c.name, data{nr: uint32(nr), arch: a.audit, args: [6]uint64{1, 2, 3, 4, 5, 6}}, allow)
			}
		}
		number := func(name string) uint32 {
			for nr, c := range known {
				if c.name == name {
					return uint32(nr)
				}
			}
			t.Fatalf("%s is not listed", name)
			return 0
		}
		const thread = unix.CLONE_VM | unix.CLONE_FS | unix.CLONE_FILES | unix.CLONE_SIGHAND | unix.CLONE_SYSVSEM | unix.CLONE_THREAD
		for _, c := range []struct {
			name string
			args [6]uint64
			want verdict
		}{
			{"clone", [6]uint64{thread}, allow},
			{"clone", [6]uint64{uint64(unix.SIGCHLD)}, eperm},
			{"clone", [6]uint64{unix.CLONE_VM | unix.CLONE_VFORK | uint64(unix.SIGCHLD)}, eperm},
			{"clone", [6]uint64{thread | unix.CLONE_NEWUSER}, eperm},
			{"mmap", [6]uint64{0, 4096, unix.PROT_READ | unix.PROT_WRITE}, allow},
			{"mmap", [6]uint64{0, 4096, unix.PROT_READ | unix.PROT_EXEC}, eperm},
			{"mprotect", [6]uint64{0, 4096, unix.PROT_EXEC}, eperm},
			{"socket", [6]uint64{unix.AF_UNIX, unix.SOCK_SEQPACKET}, allow},
			{"socket", [6]uint64{unix.AF_INET6, unix.SOCK_STREAM | unix.SOCK_CLOEXEC}, allow},
			{"socket", [6]uint64{unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP}, eperm},
			{"socket", [6]uint64{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP}, eprotonosupport},
			{"socket", [6]uint64{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_SOCK_DIAG}, allow},
			{"socket", [6]uint64{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE}, allow},
			{"socket", [6]uint64{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_XFRM}, eafnosupport},
			{"socket", [6]uint64{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER}, eafnosupport},
			{"socket", [6]uint64{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_GENERIC}, eafnosupport},
			{"socket", [6]uint64{unix.AF_PACKET, unix.SOCK_RAW, unix.NETLINK_SOCK_DIAG}, eafnosupport},
			{"socket", [6]uint64{1<<32 | unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_XFRM}, eafnosupport},
			{"setsockopt", [6]uint64{0, unix.SOL_SOCKET, unix.SO_REUSEADDR}, allow},
			{"setsockopt", [6]uint64{0, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER}, eperm},
			{"setsockopt", [6]uint64{0, unix.SOL_SOCKET, unix.SO_ATTACH_BPF}, eperm},
			{"ioctl", [6]uint64{0, unix.TCGETS}, allow},
			{"ioctl", [6]uint64{0, 1<<32 | unix.TIOCSTI}, eperm},
			{"prctl", [6]uint64{unix.PR_SET_VMA}, allow},
			{"prctl", [6]uint64{unix.PR_SET_DUMPABLE, 1}, eperm},
			{"fchmodat", [6]uint64{0, 0, 0o640}, allow},
			{"fchmodat", [6]uint64{0, 0, unix.S_ISUID | 0o755}, eperm},
		} {
			wants(c.name, data{nr: number(c.name), arch: a.audit, args: c.args}, c.want)
		}
		wants("x32", data{nr: x32Bit | 1, arch: a.audit}, kill)
		wants("another architecture", data{nr: 0, arch: unix.AUDIT_ARCH_I386}, kill)
	}
}
