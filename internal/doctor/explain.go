package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/boxd/boxd/cgroups"
	"github.com/boxd/boxd/engine"
)

// cause is a reason why a check is not ok. The first cause that holds explains the check, so
// certain causes come before guesses.
type cause struct {
	name   string
	checks []string // names of the checks that it can explain; "limit" means every limit
	holds  func(f Facts, c Check) bool
	why    func(f Facts, c Check) string
	do     func(f Facts, c Check) string // a command line, or ""
}

// Explain adds to each check of r that is not ok its cause on this host, and the command that
// fixes it.
func (r *Report) Explain(f Facts) {
	r.Surroundings = f.Around.String()
	for i := range r.Checks {
		c := &r.Checks[i]
		if c.Status == OK || c.Status == Absent {
			continue
		}
		if strings.HasPrefix(c.Name, enginePrefix) {
			c.Cause = "the launcher has looked at the program, and says above what is wrong with it"
			continue
		}
		c.Cause = "not known to the doctor: what the kernel said is above"
		for _, one := range causes {
			if one.explains(c.Name) && one.holds(f, *c) {
				c.Cause, c.Command = one.why(f, *c), one.do(f, *c)
				break
			}
		}
	}
}

func (c cause) explains(check string) bool {
	return slices.Contains(c.checks, check) || strings.HasSuffix(check, " limit") && slices.Contains(c.checks, "limit")
}

// sysAdmin are the checks that need CAP_SYS_ADMIN and a system call that container runtimes
// filter.
var sysAdmin = []string{featureMounts, featureIDMap, featureOverlay, "workspaces", checkLayers, "network settings"}

// tried are the checks that try a system call.
var tried = append([]string{featureUserNS, featureSeccomp, featureClone, featurePidfd, featureOpenat2, featureMemfd, featureLandlock}, sysAdmin...)

var causes = []cause{
	{"not root", append([]string{"privilege", "box", "boxd-init", featureUserNS}, sysAdmin...),
		func(f Facts, c Check) bool { return f.UID != 0 && !userNSForbidden(f, c) },
		func(f Facts, _ Check) string {
			return fmt.Sprintf("this is user %d: only root makes mounts and namespaces for other users", f.UID)
		},
		always("sudo boxd doctor --explain")},

	// User namespaces.
	{"no user namespaces", []string{featureUserNS, "box"},
		func(f Facts, _ Check) bool { return f.Sysctls["user/max_user_namespaces"] == "0" },
		always("user.max_user_namespaces is 0, which forbids user namespaces, even for root"),
		onHost("sysctl -w user.max_user_namespaces=31000 && echo user.max_user_namespaces=31000 >/etc/sysctl.d/60-boxd.conf")},
	{"AppArmor's restriction", []string{featureUserNS},
		func(f Facts, _ Check) bool {
			return f.Sysctls["kernel/apparmor_restrict_unprivileged_userns"] == "1" && (f.UID != 0 || !f.Around.has(capSysAdmin))
		},
		always("AppArmor keeps processes without CAP_SYS_ADMIN from creating user namespaces (kernel.apparmor_restrict_unprivileged_userns is 1, as on Ubuntu 24.04); boxd as root on the host does not need it changed"),
		onHost("sysctl -w kernel.apparmor_restrict_unprivileged_userns=0")},
	{"Debian's switch", []string{featureUserNS},
		func(f Facts, _ Check) bool {
			return f.Sysctls["kernel/unprivileged_userns_clone"] == "0" && (f.UID != 0 || !f.Around.has(capSysAdmin))
		},
		always("kernel.unprivileged_userns_clone is 0, which keeps processes without CAP_SYS_ADMIN from creating user namespaces; boxd as root on the host does not need it changed"),
		onHost("sysctl -w kernel.unprivileged_userns_clone=1")},
	{"kernel without user namespaces", []string{featureUserNS},
		func(f Facts, _ Check) bool {
			return f.Around.lacksOption("CONFIG_USER_NS") || certainNo(f.Features[featureUserNS]) && !f.Around.SeccompFilter
		},
		always("this kernel was built without CONFIG_USER_NS"), newKernel},

	// Containers that take rights away.
	{"nested user namespace", append([]string{featureUserNS, "box"}, sysAdmin...),
		func(f Facts, c Check) bool { return f.Around.InnerUserNS && f.UID == 0 && f.refusedIn(c) },
		func(f Facts, _ Check) string {
			return "root here is root of a user namespace only, not of the host" + f.within() + ": it may use neither the IDs of boxes nor mounts that belong to the host"
		},
		func(f Facts, _ Check) string {
			return f.Around.runtime("docker run --userns=host --privileged …", "set spec.hostUsers: true and securityContext.privileged: true in the pod", "run boxd outside of unshare -U or rootless containers, as the host's root")
		}},
	{"missing capability", append([]string{featureUserNS, "box"}, sysAdmin...),
		func(f Facts, c Check) bool { return f.UID == 0 && !f.Around.has(capSysAdmin) && f.refusedIn(c) },
		func(f Facts, _ Check) string {
			return "root here has no CAP_SYS_ADMIN" + f.within() + ": the program that started this process removed it"
		},
		func(f Facts, _ Check) string {
			return f.Around.runtime("docker run --privileged …", "set securityContext.privileged: true in the pod", "remove CapabilityBoundingSet= and the like from the unit, or start boxd from a root shell")
		}},
	{"missing network capability", []string{"network settings", "box"},
		func(f Facts, c Check) bool { return f.UID == 0 && !f.Around.has(capNetAdmin) && f.refusedIn(c) },
		func(f Facts, _ Check) string {
			return "root here has no CAP_NET_ADMIN" + f.within() + ": the network of a box cannot be set up"
		},
		func(f Facts, _ Check) string {
			return f.Around.runtime("docker run --privileged …", "set securityContext.privileged: true in the pod", "remove CapabilityBoundingSet= and the like from the unit")
		}},
	{"seccomp filter", append([]string{"box"}, tried...),
		func(f Facts, c Check) bool {
			return f.Around.SeccompFilter && (f.refusedIn(c) || f.missingThoughNew(c))
		},
		func(f Facts, c Check) string {
			return "a seccomp filter" + f.within() + " refuses the system call: this kernel has it" + map[bool]string{true: ", and the capability is there", false: ""}[f.Around.has(capSysAdmin)]
		},
		func(f Facts, _ Check) string {
			return f.Around.runtime("docker run --privileged --security-opt seccomp=unconfined …", "set securityContext.seccompProfile.type: Unconfined in the pod", "remove SystemCallFilter= and the like from the unit")
		}},
	{"security module", append([]string{featureUserNS, "box"}, sysAdmin...),
		func(f Facts, c Check) bool { return f.Around.LSM != "" && f.UID == 0 && f.refusedIn(c) },
		func(f Facts, _ Check) string {
			return "this process is confined as " + f.Around.LSM + f.within() + ", which refuses it although the capability is there"
		},
		func(f Facts, _ Check) string {
			return f.Around.runtime("docker run --privileged --security-opt apparmor=unconfined …", "set securityContext.appArmorProfile.type: Unconfined in the pod", "journalctl -k -g 'apparmor|avc' # names the rule that refused it")
		}},

	// Limits.
	{"read-only cgroups", []string{"cgroups", "limit", "box"},
		func(f Facts, c Check) bool {
			_, ro := f.Around.readOnlyCgroup()
			return ro && (c.Name != "box" || f.CgroupError != nil || f.Box.Error != nil && !f.Box.noLauncher())
		},
		func(f Facts, _ Check) string {
			m, _ := f.Around.readOnlyCgroup()
			return m.Point + " is mounted read-only" + f.within() + ": no cgroup can be created for a box"
		},
		func(f Facts, _ Check) string {
			m, _ := f.Around.readOnlyCgroup()
			return f.Around.runtime("docker run --privileged --cgroupns=host -v /sys/fs/cgroup:/sys/fs/cgroup:rw …", "set securityContext.privileged: true and mount the host's /sys/fs/cgroup as a hostPath volume", "mount -o remount,rw "+m.Point)
		}},
	{"controller turned off at boot", []string{"limit", "box"},
		func(f Facts, c Check) bool { return f.disabledController(c) != "" },
		func(f Facts, c Check) string {
			return "the kernel was booted with cgroup_disable=" + f.disabledController(c)
		},
		func(f Facts, c Check) string {
			return f.kernelArgument("", "cgroup_disable="+f.disabledController(c))
		}},
	{"no swap accounting", []string{"swap limit"},
		func(f Facts, c Check) bool { return f.unenforced(c) && f.CgroupMode != string(cgroups.Unified) },
		func(f Facts, _ Check) string {
			if f.Around.lacksOption("CONFIG_MEMCG_SWAP") && f.Around.lacksOption("CONFIG_MEMCG") {
				return "this kernel was built without CONFIG_MEMCG_SWAP"
			}
			return "the kernel was booted without swap accounting: there is no memory.memsw.limit_in_bytes"
		},
		func(f Facts, _ Check) string { return "swapoff -a # or: " + f.kernelArgument("swapaccount=1", "") }},
	{"kernel without the controller", []string{"limit"},
		func(f Facts, c Check) bool { return f.unenforced(c) && f.Around.lacksOption(controllerOption[c.Name]) },
		func(f Facts, c Check) string { return "this kernel was built without " + controllerOption[c.Name] }, newKernel},
	{"controller not handed down", []string{"limit", "box"},
		func(f Facts, c Check) bool {
			return f.unenforced(c) || c.Name == "box" && errors.Is(f.Box.Error, engine.ErrUnenforceable)
		},
		func(f Facts, _ Check) string {
			return "the cgroup that boxd is in has not got the controller" + f.within() + ": see the note above"
		},
		func(f Facts, _ Check) string {
			return f.Around.runtime("docker run --privileged --cgroupns=host …", "set securityContext.privileged: true in the pod", "systemctl set-property boxd-launcher.service Delegate=yes # or: echo '+memory +pids +cpu' >/sys/fs/cgroup/cgroup.subtree_control")
		}},
	{"cgroup v1", []string{"cgroups", "limit"},
		func(f Facts, _ Check) bool {
			return f.CgroupMode == string(cgroups.Hybrid) || f.CgroupMode == string(cgroups.Legacy)
		},
		func(f Facts, _ Check) string {
			if v, ok := f.Around.option("systemd.unified_cgroup_hierarchy"); ok && (v == "0" || v == "false" || v == "no") {
				return "the kernel was booted with systemd.unified_cgroup_hierarchy=" + v + ": the controllers are on cgroup v1"
			}
			return "the host's init put the controllers on cgroup v1 at boot"
		},
		func(f Facts, _ Check) string {
			return f.kernelArgument("systemd.unified_cgroup_hierarchy=1", "systemd.unified_cgroup_hierarchy")
		}},
	{"no cgroup file system", []string{"cgroups", "box"},
		func(f Facts, _ Check) bool { return f.CgroupError != nil },
		always("no cgroup2 file system is mounted, and boxd cannot mount one"), always("mount -t cgroup2 none /sys/fs/cgroup")},

	// Kernel and host.
	{"old kernel", append([]string{"kernel"}, tried...),
		func(f Facts, c Check) bool { return f.olderThan(since[c.Name]) },
		func(f Facts, c Check) string {
			v := since[c.Name]
			return fmt.Sprintf("this is Linux %s, and it takes %d.%d or newer", f.Release, v[0], v[1])
		}, newKernel},
	{"kernel flaws", []string{"kernel flaws"}, func(Facts, Check) bool { return true },
		func(f Facts, _ Check) string {
			return "Linux " + f.Release + " is older than the corrections of kernel.org; the distribution's security tracker says whether it has them"
		}, newKernel},
	{"overlayfs is a module", []string{featureOverlay},
		func(f Facts, _ Check) bool { return f.Around.Config["CONFIG_OVERLAY_FS"] == "m" },
		always("overlayfs is a module of this kernel, and not loaded"), onHost("modprobe overlay && echo overlay >/etc/modules-load.d/boxd.conf")},
	{"kernel option", []string{featureOverlay, featureSeccomp, featureLandlock},
		func(f Facts, c Check) bool { return f.Around.lacksOption(featureOption[c.Name]) },
		func(_ Facts, c Check) string { return "this kernel was built without " + featureOption[c.Name] }, newKernel},
	{"landlock is not turned on", []string{featureLandlock},
		func(f Facts, _ Check) bool {
			return f.Around.LSMs != "" && !strings.Contains(f.Around.LSMs, "landlock")
		},
		func(f Facts, _ Check) string {
			return "landlock is not among the security modules that the kernel was booted with (" + f.Around.LSMs + ")"
		},
		func(f Facts, _ Check) string { return f.kernelArgument("lsm=landlock,"+f.Around.LSMs, "lsm") }},
	{"memfd_noexec", []string{featureMemfd, "box"},
		func(f Facts, _ Check) bool { return f.Sysctls["vm/memfd_noexec"] == "2" },
		always("vm.memfd_noexec is 2, which forbids programs in memory"), onHost("sysctl -w vm.memfd_noexec=1")},
	{"noexec", []string{"boxd-init", "box"},
		func(f Facts, _ Check) bool {
			_, no := f.Around.noexec(f.InitPath)
			return no && f.InitPath != "" && f.Box.Error != nil
		},
		func(f Facts, _ Check) string {
			m, _ := f.Around.noexec(f.InitPath)
			return fmt.Sprintf("%s lies on %s, which is mounted noexec", f.InitPath, m.Point)
		},
		func(f Facts, _ Check) string {
			m, _ := f.Around.noexec(f.InitPath)
			return "mount -o remount,exec " + m.Point
		}},
	{"no boxd-init", []string{"boxd-init", "box"},
		func(f Facts, _ Check) bool { return f.Box.noLauncher() && f.InitPath == "" },
		always("boxd-init, which builds boxes, is not where boxd looks for it"), always("make install # or name it: boxd doctor --init PATH")},
	{"file system of the state directory", []string{"workspaces", checkLayers, featureIDMap},
		func(f Facts, c Check) bool {
			return certainNo(f.WorkspaceError) && (c.Name == "workspaces" || c.Name == checkLayers) || certainNo(f.Features[featureIDMap]) && c.Name == featureIDMap
		},
		func(f Facts, c Check) string {
			dir := map[bool]string{true: f.StateDir, false: "/"}[c.Name != featureIDMap]
			m := f.Around.mountOf(dir)
			return fmt.Sprintf("%s is on %s, a file system (%s) that Linux %s cannot id-map", dir, m.Point, m.FSType, f.Release)
		},
		always("boxd serve --state-dir DIR # DIR on ext4, xfs or btrfs")},
	{"setting of the host", []string{sysctlName(poolPIDs), sysctlName(poolFiles), sysctlName(poolPTY), sysctlName(poolTCP), sysctlName(poolUDP), "network settings"},
		func(_ Facts, c Check) bool { return len(c.set) > 0 },
		func(f Facts, c Check) string {
			if c.Name == "network settings" {
				return "Linux " + f.Release + " has this setting once for the host, not for each network namespace"
			}
			return "the host has one pool for all boxes, and it is used up before the memory is"
		},
		func(f Facts, c Check) string { return f.host("sysctl -w " + strings.Join(c.set, " ")) }},
	{"leftover", []string{"leftover"}, func(Facts, Check) bool { return true },
		always("a launcher was killed, and what it left is still in use: see above"), always("")},
	{"covered /proc", []string{"box"},
		func(f Facts, c Check) bool {
			// The kernel then refuses /proc to every box, but the launcher's error does not say so: its
			// errors have no errno. So this comes behind all causes that are known for certain. A box
			// that was created has a /proc, so what failed later has another cause.
			return f.Box.Error != nil && f.Box.Create == 0 && f.CgroupError == nil && !errors.Is(f.Box.Error, context.DeadlineExceeded) && !f.Box.noLauncher() && !errors.Is(f.Box.Error, engine.ErrUnenforceable) &&
				f.Features[featureMounts] == nil && len(f.Around.masked()) > 0
		},
		func(f Facts, _ Check) string {
			return "parts of /proc are covered" + f.within() + " (" + strings.Join(f.Around.masked(), ", ") + "): the kernel then refuses a new /proc in the user namespace of a box"
		},
		func(f Facts, _ Check) string {
			return f.Around.runtime("docker run --privileged --security-opt systempaths=unconfined …", "set securityContext.procMount: Unmasked in the pod", "umount "+strings.Join(f.Around.masked(), " "))
		}},
	{"another check", []string{"box", "boxd-init"},
		func(f Facts, _ Check) bool { return f.Box.Error != nil },
		always("follows from what is not ok above"), always("")},
}

func always(command string) func(Facts, Check) string {
	return func(Facts, Check) string { return command }
}

// onHost is a command to run on the host, even if this is a container.
func onHost(command string) func(Facts, Check) string {
	return func(f Facts, _ Check) string { return f.host(command) }
}

func (f Facts) host(command string) string {
	if f.Around.Container == "" {
		return command
	}
	return "on the host of the container: " + command
}

// userNSForbidden reports whether a sysctl forbids user namespaces. That is a better explanation
// than not being root.
func userNSForbidden(f Facts, c Check) bool {
	return c.Name == featureUserNS && (f.Sysctls["user/max_user_namespaces"] == "0" ||
		f.Sysctls["kernel/apparmor_restrict_unprivileged_userns"] == "1" || f.Sysctls["kernel/unprivileged_userns_clone"] == "0")
}

// errorOf returns the error that a check met, or nil if it is not about a single error.
func (f Facts) errorOf(c Check) error {
	switch c.Name {
	case "box":
		return f.Box.Error
	case "workspaces":
		return f.WorkspaceError
	case "network settings":
		return f.HostWideError
	}
	return f.Features[c.Name]
}

func (f Facts) refusedIn(c Check) bool { return refused(f.errorOf(c)) }

// missingThoughNew reports whether a kernel that has a system call says that it does not exist.
func (f Facts) missingThoughNew(c Check) bool {
	v, known := since[c.Name]
	return known && certainNo(f.errorOf(c)) && !f.olderThan(v)
}

// noLauncher reports whether no box was tried because there is no launcher.
func (t Trial) noLauncher() bool { return errors.Is(t.Error, engine.ErrNoLauncher) }

func (f Facts) olderThan(v kernelVersion) bool {
	have, ok := parseRelease(f.Release)
	return ok && have.less(v)
}

// since maps features to the first kernel that has them.
var since = map[string]kernelVersion{
	"kernel": minKernel, featureMounts: {5, 12, 0}, featureIDMap: {5, 12, 0}, featureClone: {5, 7, 0}, featurePidfd: {5, 3, 0}, featureOpenat2: {5, 6, 0},
	featureLandlock: {5, 19, 0}, checkLayers: {5, 19, 0}, featureSeccomp: {4, 14, 0}, featureUserNS: {3, 8, 0},
}

var featureOption = map[string]string{featureOverlay: "CONFIG_OVERLAY_FS", featureSeccomp: "CONFIG_SECCOMP_FILTER", featureLandlock: "CONFIG_SECURITY_LANDLOCK"}

var controllerOption = map[string]string{"memory limit": "CONFIG_MEMCG", "swap limit": "CONFIG_MEMCG", "kernel memory limit": "CONFIG_MEMCG",
	"pids limit": "CONFIG_CGROUP_PIDS", "cpus limit": "CONFIG_CFS_BANDWIDTH"}

// unenforced reports whether c is a limit that is not enforced at all.
func (f Facts) unenforced(c Check) bool {
	return slices.ContainsFunc(f.Enforcement, func(e cgroups.Enforcement) bool { return e.Limit+" limit" == c.Name && !e.Enforced })
}

// disabledController returns the controller of a limit if the kernel's command line disables it,
// or "".
func (f Facts) disabledController(c Check) string {
	list, _ := f.Around.option("cgroup_disable")
	for _, controller := range strings.Split(list, ",") {
		limits := map[string][]string{"memory": {"memory limit", "swap limit", "kernel memory limit"}, "pids": {"pids limit"}, "cpu": {"cpus limit"}}[controller]
		if slices.Contains(limits, c.Name) || c.Name == "box" && errors.Is(f.Box.Error, engine.ErrUnenforceable) && limits != nil {
			return controller
		}
	}
	return ""
}

// within names the container, if this seems to be one, in parentheses.
func (f Facts) within() string {
	if f.Around.Container == "" {
		return ""
	}
	return " (this seems to be " + f.Around.Container + ")"
}

// runtime chooses the advice for the kind of container that this seems to be, or for a host.
func (s Surroundings) runtime(docker, kubernetes, host string) string {
	switch s.Container {
	case "Docker":
		return docker
	case "Podman":
		return strings.ReplaceAll(docker, "docker run", "podman run")
	case "Kubernetes":
		return kubernetes
	case "LXC":
		return "lxc config set NAME security.nesting=true security.privileged=true"
	}
	return host
}

// kernelArgument is the command that adds and removes a kernel parameter for the next boot.
func (f Facts) kernelArgument(add, remove string) string {
	switch f.Around.Distribution {
	case "fedora", "rhel", "centos", "rocky", "almalinux", "amzn":
		command := "grubby --update-kernel=ALL"
		if remove != "" {
			command += " --remove-args=" + remove
		}
		if add != "" {
			command += " --args=" + add
		}
		return f.host(command + " && reboot")
	}
	edit := ""
	if remove != "" {
		edit += `s/` + strings.ReplaceAll(remove, ".", `\.`) + `[^ "]*//;`
	}
	if add != "" {
		edit += `s/="/="` + strings.ReplaceAll(add, "/", `\/`) + ` /;`
	}
	return f.host(`sed -i '/^GRUB_CMDLINE_LINUX=/{` + edit + `}' /etc/default/grub && update-grub && reboot`)
}

// newKernel is the command that installs the distribution's newest kernel.
func newKernel(f Facts, _ Check) string {
	arch := map[string]string{"x86_64": "amd64", "aarch64": "arm64"}[f.Machine]
	switch f.Around.Distribution {
	case "ubuntu":
		return f.host("apt-get update && apt-get install linux-generic && reboot")
	case "debian":
		return f.host("apt-get update && apt-get install linux-image-" + arch + " && reboot")
	case "fedora", "rhel", "centos", "rocky", "almalinux", "amzn":
		return f.host("dnf upgrade kernel && reboot")
	}
	return f.host("reboot # after an upgrade of the kernel by the distribution's package manager")
}

// String describes the surroundings in one line.
func (s Surroundings) String() string {
	parts := []string{map[bool]string{true: "looks like a host", false: "seems to be " + s.Container}[s.Container == ""]}
	if s.InnerUserNS {
		parts = append(parts, "in a user namespace of its own")
	}
	for _, c := range []struct {
		bit  int
		name string
	}{{capSysAdmin, "CAP_SYS_ADMIN"}, {capNetAdmin, "CAP_NET_ADMIN"}, {capSetUID, "CAP_SETUID"}} {
		if !s.has(c.bit) {
			parts = append(parts, "without "+c.name)
		}
	}
	if s.SeccompFilter {
		parts = append(parts, "system calls are filtered")
	}
	if s.LSM != "" {
		parts = append(parts, "confined as "+s.LSM)
	}
	if m, ro := s.readOnlyCgroup(); ro {
		parts = append(parts, m.Point+" is read-only")
	}
	if masked := s.masked(); len(masked) > 0 {
		parts = append(parts, "parts of /proc are covered")
	}
	return strings.Join(parts, ", ")
}
