package mounts

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/pathin"
)

// DefaultDeny are the trees of the host that are never mounted; treat it as a
// constant. To these the engine adds boxd's own state.
//
// For each entry a source is refused that
//
//	is it      every entry, also through a bind mount or symlink of it
//	is below   every entry but "/", also through another mount of the same file
//	           system, such as a bind mount of a directory inside
//	contains   every entry, although mounts are not recursive: what is not a mount
//	           of its own would be seen, and a box must not keep a name busy or
//	           put files where the real tree is mounted later
//
// and the reasons are:
//
//	/               is all of the host; everything is below, so that counts not
//	/etc            secrets (shadow, keys) and what services believe at next start
//	/proc /sys      the kernel's own controls, writable by file owner
//	/dev            devices, and the shared memory and terminals of others
//	/root           the administrator's keys and start-up files
//	/boot           the next kernel
//	/run /var/run   sockets of daemons, container engines among them, that are as
//	                good as root; run-time secrets; /run/boxd. /var/run is
//	                usually a link to /run and counts where it is not
//
// Entries that do not exist on a host are passed over. Beyond the list no file
// system is mounted by which the kernel is controlled, wherever it is mounted.
var DefaultDeny = []string{
	"/", "/etc", "/proc", "/sys", "/dev", "/root", "/boot", "/run", "/var/run",
}

// controlFS are file systems whose files are controls of the kernel. devtmpfs
// says tmpfs in statfs(2) but not in mountinfo, which is asked here.
var controlFS = map[string]bool{
	"proc": true, "sysfs": true, "cgroup": true, "cgroup2": true, "devtmpfs": true,
	"devpts": true, "debugfs": true, "tracefs": true, "securityfs": true, "bpf": true,
	"configfs": true, "efivarfs": true, "pstore": true, "fusectl": true,
	"binfmt_misc": true, "selinuxfs": true, "smackfs": true, "nsfs": true,
	"mqueue": true, "resctrl": true, "xenfs": true, "nfsd": true, "rpc_pipefs": true,
	"autofs": true, "pidfs": true,
}

// checkDenied refuses the source at p, which the caller calls name, if an entry
// of deny or its file system says so.
func checkDenied(p place, name string, deny []string, table mountTable) error {
	for _, entry := range deny {
		how, err := relation(p, entry, table)
		if err != nil {
			return refuse(spec.MountSource, name, "cannot be checked against %q: %v", entry, err).Because(err)
		}
		if how != "" {
			return refuse(spec.MountSource, name, "%s %q, which is never mounted: use a directory outside of it", how, entry)
		}
	}
	if controlFS[p.fs.FSType] {
		return refuse(spec.MountSource, name, "lies on a %s file system, which is never mounted", p.fs.FSType)
	}
	return nil
}

// relation says how the source at p touches the tree denied, as the verb of a
// sentence; empty if it does not.
func relation(p place, denied string, table mountTable) (string, error) {
	// O_PATH does not trigger automounts, and magic links are fine: the entry
	// comes from the operator.
	f, err := linux.Openat2(nil, denied, unix.OpenHow{Flags: unix.O_PATH})
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer f.Close()
	d, err := locate(f, table)
	if err != nil {
		return "", err
	}
	return compare(p, d), nil
}

// compare is relation for two places.
func compare(p, d place) string {
	switch {
	case p.id() == d.id():
		return "is"
	case !d.isRoot() && contains(d, p):
		return "lies in"
	case p.isDir() && contains(p, d):
		return "contains"
	}
	return ""
}

// contains says whether inner is below outer, by the directories above it or by
// its place in the file system.
func contains(outer, inner place) bool {
	for _, id := range inner.chain[1:] {
		if id == outer.id() {
			return true
		}
	}
	return outer.sameFS(inner) && pathin.In(inner.inFS, outer.inFS)
}
