package doctor

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/cgroups"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/netns"
	"golang.org/x/sys/unix"
)

// host is a machine that withholds nothing.
func host() Surroundings {
	return Surroundings{
		Capabilities: 1<<41 - 1, Distribution: "debian", LSMs: "lockdown,capability,landlock,yama,apparmor",
		Mounts: []linux.MountInfo{{Point: "/", FSType: "ext4"}, {Point: "/proc", FSType: "proc"}, {Point: "/sys/fs/cgroup", FSType: "cgroup2", Flags: []string{"rw"}}},
	}
}

func in(container string) func(*Facts) { return func(f *Facts) { f.Around.Container = container } }

// Each row is a host with one problem, which one cause explains.
func TestExplain(t *testing.T) {
	eperm, enosys := os.NewSyscallError("fsopen", unix.EPERM), os.NewSyscallError("fsopen", unix.ENOSYS)
	refuseAll := func(f *Facts) {
		for _, name := range []string{featureUserNS, featureMounts, featureIDMap, featureOverlay} {
			f.Features[name] = eperm
		}
		f.WorkspaceError, f.HostWideError = eperm, eperm
		f.Box.Error = fmt.Errorf("creating box: %w", eperm)
	}
	readOnly := func(f *Facts) { f.Around.Mounts[2].Flags = []string{"ro", "nosuid"} }
	noCaps := func(f *Facts) { refuseAll(f); f.Around.Capabilities = 0xa80425fb } // as in docker run
	filtered := func(f *Facts) { refuseAll(f); f.Around.SeccompFilter = true }
	unenforced := func(limit, note string) func(*Facts) {
		return func(f *Facts) {
			f.Enforcement = []cgroups.Enforcement{{Limit: limit, Note: note}}
			f.Box.Error, f.Box.Degraded = engine.ErrUnenforceable, true
		}
	}
	boot := func(line string) func(*Facts) { return func(f *Facts) { f.Around.CommandLine = line } }
	config := func(words ...string) func(*Facts) {
		return func(f *Facts) {
			f.Around.Config = map[string]string{"CONFIG_X86": "y"}
			for _, w := range words {
				name, value, _ := strings.Cut(w, "=")
				f.Around.Config[name] = value
			}
		}
	}
	user := func(f *Facts) {
		f.UID, f.Around.Capabilities, f.Enforcement = 1000, 0, nil
		refuseAll(f)
		f.Box.Error = errNotRoot
	}
	sysctl := func(name, value string) func(*Facts) { return func(f *Facts) { f.Sysctls[name] = value } }
	used := map[string]bool{}
	for _, c := range []struct {
		name    string
		changes []func(*Facts)
		check   string
		because string // part of the cause
		do      string // part of the command
	}{
		{"a user", []func(*Facts){user}, "privilege", "this is user 1000", "sudo boxd doctor"},
		{"a user", []func(*Facts){user}, featureMounts, "this is user 1000", "sudo"},
		{"a user under AppArmor", []func(*Facts){user, sysctl("kernel/apparmor_restrict_unprivileged_userns", "1")}, featureUserNS, "kernel.apparmor_restrict_unprivileged_userns is 1", "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"},
		{"a user on old Debian", []func(*Facts){user, sysctl("kernel/unprivileged_userns_clone", "0")}, featureUserNS, "kernel.unprivileged_userns_clone is 0", "sysctl -w kernel.unprivileged_userns_clone=1"},
		{"root without capabilities under AppArmor", []func(*Facts){noCaps, sysctl("kernel/apparmor_restrict_unprivileged_userns", "1")}, featureUserNS, "AppArmor keeps", "sysctl -w"},
		{"no user namespaces", []func(*Facts){refuseAll, sysctl("user/max_user_namespaces", "0")}, featureUserNS, "user.max_user_namespaces is 0", "sysctl -w user.max_user_namespaces=31000"},
		{"a kernel without them", []func(*Facts){config(), func(f *Facts) { f.Features[featureUserNS] = errNo }}, featureUserNS, "CONFIG_USER_NS", "linux-image-amd64"},

		{"Docker", []func(*Facts){noCaps, in("Docker")}, featureMounts, "no CAP_SYS_ADMIN (this seems to be Docker)", "docker run --privileged"},
		{"Docker", []func(*Facts){noCaps, in("Docker")}, "box", "no CAP_SYS_ADMIN", "docker run --privileged"},
		{"Docker", []func(*Facts){noCaps, in("Docker")}, "workspaces", "no CAP_SYS_ADMIN", "docker run --privileged"},
		{"Podman", []func(*Facts){noCaps, in("Podman")}, featureOverlay, "no CAP_SYS_ADMIN", "podman run --privileged"},
		{"a pod", []func(*Facts){noCaps, in("Kubernetes")}, featureMounts, "no CAP_SYS_ADMIN (this seems to be Kubernetes)", "securityContext.privileged: true"},
		{"LXC", []func(*Facts){noCaps, in("LXC")}, featureMounts, "no CAP_SYS_ADMIN", "security.nesting=true"},
		{"a unit", []func(*Facts){noCaps}, featureMounts, "no CAP_SYS_ADMIN", "CapabilityBoundingSet"},
		{"no network rights", []func(*Facts){func(f *Facts) { f.HostWideError, f.Around.Capabilities = eperm, (1<<41-1)&^(1<<capNetAdmin) }}, "network settings", "no CAP_NET_ADMIN", "CapabilityBoundingSet"},
		{"rootless", []func(*Facts){refuseAll, func(f *Facts) { f.Around.InnerUserNS = true }}, featureIDMap, "root of a user namespace only", "outside of unshare -U"},
		{"Docker with userns-remap", []func(*Facts){refuseAll, in("Docker"), func(f *Facts) { f.Around.InnerUserNS = true }}, "box", "root of a user namespace only", "--userns=host"},
		{"a filter", []func(*Facts){filtered}, featureMounts, "a seccomp filter refuses", "SystemCallFilter"},
		{"Docker's filter", []func(*Facts){filtered, in("Docker")}, featureUserNS, "a seccomp filter (this seems to be Docker) refuses", "seccomp=unconfined"},
		{"a filter of a pod", []func(*Facts){filtered, in("Kubernetes")}, "box", "a seccomp filter", "seccompProfile.type: Unconfined"},
		{"a filter that says ENOSYS", []func(*Facts){func(f *Facts) { f.Features[featureClone], f.Around.SeccompFilter = enosys, true }}, featureClone, "this kernel has it", "SystemCallFilter"},
		{"no filter, ENOSYS, old", []func(*Facts){func(f *Facts) { f.Features[featureClone], f.Release = enosys, "5.4.0" }}, featureClone, "this is Linux 5.4.0, and it takes 5.7", "apt-get install linux-image-amd64"},
		{"a profile", []func(*Facts){refuseAll, in("Docker"), func(f *Facts) { f.Around.LSM = "docker-default (enforce)" }}, featureMounts, "confined as docker-default (enforce)", "apparmor=unconfined"},
		{"covered /proc", []func(*Facts){in("Kubernetes"), func(f *Facts) {
			f.Box.Create, f.Box.Error = 0, errors.New("mounting proc: operation not permitted") // the launcher's errors have no errno
			f.Around.Mounts = append(f.Around.Mounts, linux.MountInfo{Point: "/proc/kcore", FSType: "tmpfs"}, linux.MountInfo{Point: "/proc/sys", FSType: "proc", Flags: []string{"ro"}})
		}}, "box", "(/proc/kcore, /proc/sys)", "procMount: Unmasked"},
		{"mounts on empty directories of /proc", []func(*Facts){func(f *Facts) {
			f.Box.Create, f.Box.Error = 0, errors.New("making cgroups: no space left on device")
			f.Around.Mounts = append(f.Around.Mounts, linux.MountInfo{Point: "/proc/fs/nfsd", FSType: "nfsd"}, linux.MountInfo{Point: "/proc/sys/fs/binfmt_misc", FSType: "autofs"})
		}}, "box", "follows from what is not ok above", ""},
		{"covered /proc and read-only cgroups", []func(*Facts){in("Docker"), readOnly, func(f *Facts) {
			f.Box.Create, f.Box.Error = 0, errors.New("making cgroups: mkdir: read-only file system")
			f.Around.Mounts = append(f.Around.Mounts, linux.MountInfo{Point: "/proc/kcore", FSType: "tmpfs"})
		}}, "box", "is mounted read-only (this seems to be Docker)", "-v /sys/fs/cgroup:/sys/fs/cgroup:rw"},
		{"covered /proc, and a command that fails", []func(*Facts){func(f *Facts) {
			f.Box.Create, f.Box.Error = time.Millisecond, errors.New("command in the box: exit status 1, verdict exited")
			f.Around.Mounts = append(f.Around.Mounts, linux.MountInfo{Point: "/proc/kcore", FSType: "tmpfs"})
		}}, "box", "follows from what is not ok above", ""},

		{"read-only cgroups", []func(*Facts){readOnly, unenforced("memory", "mkdir: read-only file system")}, "memory limit", "/sys/fs/cgroup is mounted read-only", "mount -o remount,rw /sys/fs/cgroup"},
		{"read-only cgroups in Docker", []func(*Facts){readOnly, in("Docker"), unenforced("memory", "")}, "box", "is mounted read-only (this seems to be Docker)", "-v /sys/fs/cgroup:/sys/fs/cgroup:rw"},
		{"read-only cgroups in a pod", []func(*Facts){readOnly, in("Kubernetes"), func(f *Facts) { f.CgroupMode, f.CgroupError = "", eperm }}, "cgroups", "is mounted read-only", "hostPath"},
		{"turned off", []func(*Facts){boot("quiet cgroup_disable=memory ro"), unenforced("memory", "no hierarchy")}, "memory limit", "booted with cgroup_disable=memory", "sed -i '/^GRUB_CMDLINE_LINUX=/{s/cgroup_disable=memory"},
		{"turned off on Fedora", []func(*Facts){boot("cgroup_disable=cpu,pids"), unenforced("pids", ""), func(f *Facts) { f.Around.Distribution = "fedora" }}, "pids limit", "cgroup_disable=pids", "grubby --update-kernel=ALL --remove-args=cgroup_disable=pids"},
		{"swap", []func(*Facts){unenforced("swap", "memsw"), func(f *Facts) { f.CgroupMode = string(cgroups.Hybrid) }}, "swap limit", "without swap accounting", "swapoff -a"},
		{"no controller", []func(*Facts){config(), unenforced("pids", "no hierarchy")}, "pids limit", "built without CONFIG_CGROUP_PIDS", "linux-image"},
		{"not handed down", []func(*Facts){unenforced("cpus", "EBUSY")}, "cpus limit", "has not got the controller", "Delegate=yes"},
		{"not handed down in Docker", []func(*Facts){unenforced("cpus", "EBUSY"), in("Docker")}, "box", "has not got the controller", "--cgroupns=host"},
		{"hybrid by choice", []func(*Facts){boot("systemd.unified_cgroup_hierarchy=0"), func(f *Facts) { f.CgroupMode = string(cgroups.Hybrid) }}, "cgroups", "systemd.unified_cgroup_hierarchy=0", `s/systemd\.unified_cgroup_hierarchy[^ "]*//;s/="/="systemd.unified_cgroup_hierarchy=1 /`},
		{"legacy", []func(*Facts){func(f *Facts) {
			f.CgroupMode = string(cgroups.Legacy)
			f.Enforcement = []cgroups.Enforcement{{Limit: "memory", Enforced: true, Note: "weaker"}}
		}}, "memory limit", "on cgroup v1 at boot", "update-grub"},
		{"no cgroups", []func(*Facts){func(f *Facts) { f.CgroupMode, f.CgroupError = "", errors.New("mounting cgroup2: no such device") }}, "cgroups", "no cgroup2 file system", "mount -t cgroup2"},

		{"an old kernel", []func(*Facts){func(f *Facts) { f.Release = "5.4.0-1-amd64" }}, "kernel", "it takes 5.14", "linux-image-amd64"},
		{"an old kernel on Ubuntu", []func(*Facts){func(f *Facts) { f.Release, f.Around.Distribution = "5.4.0-1-amd64", "ubuntu" }}, "kernel", "it takes 5.14", "linux-generic"},
		{"a kernel with flaws", []func(*Facts){func(f *Facts) { f.Release = "6.1.100"; f.Around.Distribution = "arch" }}, "kernel flaws", "corrections of kernel.org", "reboot"},
		{"overlay as a module", []func(*Facts){config("CONFIG_OVERLAY_FS=m"), func(f *Facts) { f.Features[featureOverlay] = errNo }}, featureOverlay, "a module", "modprobe overlay"},
		{"no overlay", []func(*Facts){config(), func(f *Facts) { f.Features[featureOverlay] = errNo }}, featureOverlay, "CONFIG_OVERLAY_FS", "linux-image"},
		{"landlock off", []func(*Facts){config("CONFIG_SECURITY_LANDLOCK=y"), func(f *Facts) { f.Features[featureLandlock], f.Around.LSMs = errNo, "capability,yama" }}, featureLandlock, "(capability,yama)", "lsm=landlock,capability,yama"},
		{"memfd_noexec", []func(*Facts){sysctl("vm/memfd_noexec", "2"), func(f *Facts) { f.Features[featureMemfd] = errNo }}, featureMemfd, "vm.memfd_noexec is 2", "sysctl -w vm.memfd_noexec=1"},
		{"noexec", []func(*Facts){func(f *Facts) {
			f.InitError = fmt.Errorf("starting launcher: %w", unix.EACCES)
			f.Box.Error = f.InitError
			f.Around.Mounts = append(f.Around.Mounts, linux.MountInfo{Point: "/usr", FSType: "ext4", Flags: []string{"rw", "noexec"}})
		}}, "boxd-init", "/usr/libexec/boxd/boxd-init lies on /usr, which is mounted noexec", "mount -o remount,exec /usr"},
		{"not installed", []func(*Facts){func(f *Facts) { f.InitPath, f.InitError, f.Box.Error = "", engine.ErrNoLauncher, engine.ErrNoLauncher }}, "boxd-init", "is not where boxd looks for it", "make install"},
		{"tmpfs", []func(*Facts){func(f *Facts) {
			f.WorkspaceError = errNo
			f.Around.Mounts = append(f.Around.Mounts, linux.MountInfo{Point: "/var/lib", FSType: "nfs4"})
		}}, "workspaces", "/var/lib/boxd is on /var/lib, a file system (nfs4)", "--state-dir DIR"},
		{"pools", []func(*Facts){sysctl(poolPIDs, "400")}, "kernel.pid_max", "one pool for all boxes", "sysctl -w kernel.pid_max=2048"},
		{"sockets", []func(*Facts){sysctl(poolTCP, "1\t2\t3")}, "net.ipv4.tcp_mem", "one pool", `sysctl -w net.ipv4.tcp_mem="524288 786432 1048576"`},
		{"settings of the host", []func(*Facts){func(f *Facts) {
			f.HostWide = []netns.HostWide{{Sysctl: netns.Sysctl{Path: "core/optmem_max", Value: "4096", Since: "6.8"}, Present: "20480"}}
		}}, "network settings", "once for the host", "sysctl -w net.core.optmem_max=4096"},
		{"pools seen from Docker", []func(*Facts){sysctl(poolPIDs, "400"), in("Docker")}, "kernel.pid_max", "one pool", "on the host of the container: sysctl -w kernel.pid_max=2048"},
		{"something else", []func(*Facts){func(f *Facts) { f.Box.Error = errors.New("odd") }}, "box", "follows from what is not ok above", ""},
		{"a mystery", []func(*Facts){func(f *Facts) { f.Features[featurePidfd] = errors.New("odd") }}, featurePidfd, "not known to the doctor", ""},
	} {
		f := healthy(func(f *Facts) {
			f.Around = host()
			for _, change := range c.changes {
				change(f)
			}
		})
		r := NewReport(f)
		r.Explain(f)
		i := slices.IndexFunc(r.Checks, func(one Check) bool { return one.Name == c.check })
		if i < 0 || r.Checks[i].Status == OK || r.Surroundings == "" {
			t.Errorf("%s: %q is not a finding: %+v", c.name, c.check, r.Checks)
			continue
		}
		got := r.Checks[i]
		if !strings.Contains(got.Cause, c.because) || !strings.Contains(got.Command, c.do) || (c.do == "") != (got.Command == "") {
			t.Errorf("%s: %s because %q, do %q; want %q, %q", c.name, c.check, got.Cause, got.Command, c.because, c.do)
		}
		for _, one := range causes {
			if one.explains(got.Name) && one.holds(f, got) {
				used[one.name] = true
				break
			}
		}
		for _, one := range r.Checks {
			if one.Status == OK && one.Cause+one.Command != "" {
				t.Errorf("%s: %s is ok and explained: %+v", c.name, one.Name, one)
			}
		}
	}
	for _, one := range causes {
		if !used[one.name] && one.name != "leftover" { // which is always the reason
			t.Errorf("no row for the cause %q", one.name)
		}
	}
}

// A healthy host and a container have these surroundings.
func TestSurroundings(t *testing.T) {
	s := host()
	if got := s.String(); got != "looks like a host" {
		t.Errorf("%q", got)
	}
	s.Container, s.InnerUserNS, s.SeccompFilter, s.LSM, s.Capabilities = "Docker", true, true, "docker-default (enforce)", 1<<capNetAdmin
	s.Mounts[2].Flags = []string{"ro"}
	s.Mounts = append(s.Mounts, linux.MountInfo{Point: "/proc/kcore"})
	if got, want := s.String(), "seems to be Docker, in a user namespace of its own, without CAP_SYS_ADMIN, without CAP_SETUID, system calls are filtered, confined as docker-default (enforce), /sys/fs/cgroup is read-only, parts of /proc are covered"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	for _, c := range []struct{ file, env, systemd, want string }{
		{"", "", "", ""}, {"/.dockerenv", "", "", "Docker"}, {"/.dockerenv", "10.0.0.1", "", "Kubernetes"}, {"/run/.containerenv", "", "", "Podman"},
		{"/var/run/secrets/kubernetes.io", "", "", "Kubernetes"}, {"", "", "lxc", "LXC"}, {"", "", "systemd-nspawn", "systemd-nspawn"},
	} {
		got := container(func(name string) bool { return name == c.file }, func(string) string { return c.env }, c.systemd)
		if got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
	if got := distribution("NAME=x\nID=\"rocky\"\nID_LIKE=fedora\n"); got != "rocky" {
		t.Errorf("%q", got)
	}
	config := parseConfig(strings.NewReader("# CONFIG_A is not set\nCONFIG_B=m\nCONFIG_C=\"x=y\"\n"))
	if len(config) != 2 || config["CONFIG_B"] != "m" || config["CONFIG_C"] != `"x=y"` {
		t.Errorf("%v", config)
	}
}
