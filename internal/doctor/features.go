package doctor

import "fmt"

// Names of features, as reported.
const (
	featureUserNS  = "user namespaces"
	featureMounts  = "mount API"
	featureIDMap   = "id-mapped mounts"
	featureOverlay = "overlayfs"
	featureSeccomp = "seccomp"
	featureClone   = "clone3 into cgroup"
	featurePidfd   = "pidfd"
	featureOpenat2 = "openat2"
	featureMemfd   = "memfd exec"

	featureLandlock = "landlock"
)

// need is a kernel feature that boxes use.
type need struct {
	name   string
	detail string // what it is used for
	mend   string
	spare  bool // boxes can be built without it
}

// needs lists all features but user namespaces, which can be missing for more reasons.
var needs = []need{
	{featureMounts, "fsopen, fsmount and mount_setattr build the root", "needs Linux 5.12", false},
	{featureIDMap, "of the file system at /: files from a box get the owner of their directory", "needs Linux 5.12 and a file system such as ext4, xfs, btrfs or tmpfs (Linux 6.3)", true},
	{featureOverlay, "for --rw-rootfs", "load the module: modprobe overlay", true},
	{featureSeccomp, "filters that answer with an error", "needs a kernel with CONFIG_SECCOMP_FILTER", false},
	{featureClone, "commands start inside their limits", "needs Linux 5.7", false},
	{featurePidfd, "processes are addressed without the danger of a reused number", "needs Linux 5.3", false},
	{featureOpenat2, "paths are resolved beneath a directory", "needs Linux 5.6", false},
	{featureMemfd, "the launcher runs from a sealed copy of itself", "set sysctl vm.memfd_noexec to 0 or 1", false},
	{featureLandlock, "boxd serve is confined to its own files", "needs Linux 5.19 with CONFIG_SECURITY_LANDLOCK and landlock in the boot parameter lsm=", true},
}

func (f Facts) feature(n need) Check {
	err := f.Features[n.name]
	switch {
	case err == nil:
		return Check{Name: n.name, Status: OK, Detail: n.detail}
	case !certainNo(err):
		return Check{Name: n.name, Status: Unknown, Detail: err.Error()}
	case n.spare:
		return Check{Name: n.name, Status: Degraded, Detail: err.Error(), Mend: n.mend}
	}
	return Check{Name: n.name, Status: Failed, Detail: err.Error(), Mend: n.mend}
}

// userNamespaces also looks at the sysctls of distributions. They restrict unprivileged users only,
// except that a maximum of 0 holds for root too.
func (f Facts) userNamespaces() Check {
	c := Check{Name: featureUserNS, Status: OK}
	highest := f.Sysctls["user/max_user_namespaces"]
	if err := f.Features[featureUserNS]; err != nil {
		c.Status, c.Detail = Failed, err.Error()
		switch {
		case highest == "0":
			c.Mend = "set sysctl user.max_user_namespaces to 10000 or more"
		case certainNo(err):
			c.Mend = "needs a kernel with CONFIG_USER_NS"
		case f.UID != 0:
			c.Status = Unknown
		default:
			c.Mend = "if boxd runs in a container, allow it clone with CLONE_NEWUSER and all ids"
		}
		return c
	}
	c.Detail = fmt.Sprintf("at most %s", highest)
	if f.Sysctls["kernel/unprivileged_userns_clone"] == "0" || f.Sysctls["kernel/apparmor_restrict_unprivileged_userns"] == "1" {
		c.Detail += "; only root may create them, which is enough for boxd"
	}
	return c
}
