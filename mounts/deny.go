package mounts

import (
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/pathin"
)

// DefaultDeny lists the trees of the host that are never mounted; treat it as a
// constant. The engine adds boxd's own state to it.
//
// A source is refused if, for any entry, it
//
//	is the entry        also through a bind mount or symlink of it
//	lies in the entry   unless the entry is "/"; also through another mount of the
//	                    same file system, such as a bind mount of a directory inside
//	contains the entry  although mounts are not recursive: anything in the entry that
//	                    is not on a mount of its own would be visible, and a box must
//	                    not keep a name busy, or put files where the real tree will
//	                    be mounted later
//
// The reasons for each entry:
//
//	/               is the whole host; since everything lies in it, that does not count
//	/etc            secrets (shadow, keys), and files that services read at start
//	/proc /sys      the kernel's controls, writable by the owners of their files
//	/dev            devices, and the shared memory and terminals of others
//	/root           the administrator's keys and start-up files
//	/boot           the next kernel
//	/run /var/run   sockets of daemons, among them container engines, that give the
//	                power of root; run-time secrets; /run/boxd. /var/run is usually
//	                a symlink to /run, and is listed for hosts where it is not
//
// Entries that do not exist on a host are skipped. In addition to the list, file systems
// that control the kernel are refused wherever they are mounted.
var DefaultDeny = []string{
	"/", "/etc", "/proc", "/sys", "/dev", "/root", "/boot", "/run", "/var/run",
}

// controlFS are file systems whose files control the kernel, by their names in mountinfo.
// In statfs(2), devtmpfs would look like a tmpfs.
var controlFS = map[string]bool{
	"proc": true, "sysfs": true, "cgroup": true, "cgroup2": true, "devtmpfs": true,
	"devpts": true, "debugfs": true, "tracefs": true, "securityfs": true, "bpf": true,
	"configfs": true, "efivarfs": true, "pstore": true, "fusectl": true,
	"binfmt_misc": true, "selinuxfs": true, "smackfs": true, "nsfs": true,
	"mqueue": true, "resctrl": true, "xenfs": true, "nfsd": true, "rpc_pipefs": true,
	"autofs": true, "pidfs": true,
}

// checkDenied refuses the source at p, which the caller calls name, because of an entry of
// deny or of its file system.
func (s *survey) checkDenied(p place, name string, deny []string) error {
	for _, entry := range deny {
		how, err := s.relation(p, entry)
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

// relation returns how the source at p overlaps with the tree denied, as the verb of a
// sentence, or "" if they do not overlap.
func (s *survey) relation(p place, denied string) (string, error) {
	// O_PATH does not trigger automounts. Magic links are acceptable, since the entry
	// comes from the operator.
	f, err := linux.Openat2(nil, denied, unix.OpenHow{Flags: unix.O_PATH})
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer f.Close()
	d, err := s.locate(f)
	switch {
	case err != nil:
		return "", err
	case p.id() == d.id():
		return "is", nil
	case len(d.chain) > 1 && contains(d, p): // the root directory contains everything
		return "lies in", nil
	case isDir(p.st) && contains(p, d):
		return "contains", nil
	}
	return "", nil
}

// contains reports whether inner is below outer: by the directories above inner, or by the
// places of both in one file system, possibly through different mounts. st_dev would not
// identify the file system, because each btrfs subvolume has its own.
func contains(outer, inner place) bool {
	return slices.Contains(inner.chain[1:], outer.id()) ||
		outer.fs.Device == inner.fs.Device && pathin.In(inner.inFS, outer.inFS)
}
