package spec

import (
	"cmp"
	"fmt"
	"path"
	"strings"
)

// minOpenFiles leaves room for three streams and for what a dynamic loader and
// an interpreter hold open while they start.
const minOpenFiles = 16

// Validate checks s without touching the kernel. The first rule that is broken,
// in the order of the fields, is returned as a *[FieldError].
func (s Spec) Validate() error {
	if s.ID != "" && (len(s.ID) > 64 || !only(s.ID, lowerDigits+"-") || s.ID[0] == '-') {
		return refuse("id", Quote(s.ID), `must be 1 to 64 of a-z, 0-9 and "-", starting with a letter or digit`)
	}
	if s.Image != "" && s.Image != HostImage {
		return refuse("image", Quote(s.Image), `unknown image; the one there is: "host"`)
	}
	if !isHostname(s.Hostname) {
		return refuse("hostname", Quote(s.Hostname), `must be at most 64 letters, digits, "-" and ".", as RFC 1123 has it`)
	}
	if err := s.User.Validate("user"); err != nil {
		return err
	}
	if s.UpperSize != 0 && !s.WritableRoot {
		return refuse("upper_size", FormatSize(s.UpperSize), "needs a writable root")
	}
	return cmp.Or(
		CheckSize("upper_size", s.UpperSize, MinTmpSize),
		CheckSize("tmp_size", s.TmpSize, MinTmpSize),
		validateMounts("mounts", s.Mounts),
		s.Limits.Validate(),
	)
}

// Validate checks that each limit is zero, Unlimited or within its bounds.
// OpenFiles cannot be Unlimited: the kernel refuses an RLIMIT_NOFILE above
// fs.nr_open, which is MaxOpenFiles unless it was changed (setrlimit(2)).
func (l Limits) Validate() error {
	if l.Memory != Unlimited {
		if err := CheckSize("memory", l.Memory, MinMemory); err != nil {
			return err
		}
	}
	if l.PIDs != Unlimited {
		if err := CheckCount("pids", l.PIDs, 1, MaxPIDs); err != nil {
			return err
		}
	}
	// Written so that NaN, for which every comparison is false, is refused.
	if ok := l.CPUs == 0 || l.CPUs == Unlimited || (l.CPUs >= MinCPUs && l.CPUs <= MaxCPUs); !ok {
		return refuse("cpus", fmt.Sprint(l.CPUs), "must be %g to %d", MinCPUs, MaxCPUs)
	}
	if err := CheckCount("open_files", l.OpenFiles, minOpenFiles, MaxOpenFiles); err != nil {
		return err
	}
	if l.FileSize == Unlimited {
		return nil
	}
	return CheckSize("file_size", l.FileSize, 1)
}

// Validate checks that every field of c that is set is within its range.
func (c Change) Validate() error {
	if c.Limits != nil {
		if err := c.Limits.Validate(); err != nil {
			return err
		}
	}
	for i, target := range c.Detach {
		field := fmt.Sprintf("detach[%d]", i)
		if err := CheckPath(field, target); err != nil {
			return err
		}
		if target != path.Clean(target) || target == "/" {
			return refuse(field, Quote(target), `must be the target of a mount: a cleaned path other than "/"`)
		}
	}
	return validateMounts("attach", c.Attach)
}

// Validate checks both ids of u, which is the value of field.
func (u User) Validate(field string) error {
	if u.UID < 0 || u.UID > MaxID {
		return refuse(field+".uid", fmt.Sprint(u.UID), "must be 0 to %d", MaxID)
	}
	if u.GID < 0 || u.GID > MaxID {
		return refuse(field+".gid", fmt.Sprint(u.GID), "must be 0 to %d", MaxID)
	}
	return nil
}

const (
	lowerDigits = "abcdefghijklmnopqrstuvwxyz0123456789"
	alnum       = lowerDigits + "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
)

// only reports whether s consists of bytes of set.
func only(s, set string) bool {
	return strings.Trim(s, set) == "" // any other byte would be left standing
}

// maxHostname is __NEW_UTS_LEN of <linux/utsname.h>; RFC 1123 would allow 255.
const maxHostname = 64

// isHostname applies RFC 1123 section 2.1: labels of 1 to 63 letters, digits and
// hyphens, separated by dots, with no hyphen at either end. Empty means the default.
func isHostname(name string) bool {
	if name == "" {
		return true
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > 63 || !only(label, alnum+"-") || strings.Trim(label, "-") != label {
			return false
		}
	}
	return len(name) <= maxHostname
}

// CheckSize checks a number of bytes that may be 0, for the default, but not unlimited.
func CheckSize(field string, n, lowest int64) error {
	if n != 0 && (n < lowest || n > MaxMemory) {
		return refuse(field, SizeValue(n), "must be %s to %s", FormatSize(lowest), FormatSize(MaxMemory))
	}
	return nil
}

// CheckCount checks a number that may be 0, for the default.
func CheckCount(field string, n, lowest, highest int64) error {
	if n != 0 && (n < lowest || n > highest) {
		return refuse(field, fmt.Sprint(n), "must be %d to %d", lowest, highest)
	}
	return nil
}

// maxPath is PATH_MAX without the NUL that the kernel counts (path_resolution(7)).
const maxPath = 4095

// CheckPath checks an absolute path in a box or on the host. Paths of mounts have more
// rules, see [CheckTarget].
func CheckPath(field, p string) error {
	switch {
	case strings.ContainsRune(p, 0):
		return refuse(field, Quote(p), "must not contain a NUL byte")
	case len(p) > maxPath:
		return refuse(field, Quote(p), "must be at most %d bytes long", maxPath)
	case !strings.HasPrefix(p, "/"):
		return refuse(field, Quote(p), `must be an absolute path, starting with "/"`)
	}
	return nil
}
