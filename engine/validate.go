package engine

import (
	"fmt"
	"path"
	"strings"
)

// Validate checks s without touching the kernel. The first rule that is broken,
// in the order of the fields, is returned as a *[FieldError].
func (s Spec) Validate() error {
	return first(
		func() error { return validateID(s.ID) },
		func() error { return validateImage(s.Image) },
		func() error { return validateHostname(s.Hostname) },
		func() error { return s.User.validate("user") },
		func() error { return validateUpper(s.WritableRoot, s.UpperSize) },
		func() error { return validateSize("tmp_size", s.TmpSize, MinTmpSize) },
		func() error { return validateMounts("mounts", s.Mounts) },
		s.Limits.Validate,
	)
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
		if err := validatePath(field, target); err != nil {
			return err
		}
		if target != path.Clean(target) || target == "/" {
			return &FieldError{field, Quote(target), `must be the target of a mount: a cleaned path other than "/"`}
		}
	}
	return validateMounts("attach", c.Attach)
}

// first returns the first error of checks.
func first(checks ...func() error) error {
	for _, check := range checks {
		if err := check(); err != nil {
			return err
		}
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

func validateID(id string) error {
	if id == "" {
		return nil
	}
	if len(id) > 64 || !only(id, lowerDigits+"-") || id[0] == '-' {
		return &FieldError{"id", Quote(id), `must be 1 to 64 of a-z, 0-9 and "-", starting with a letter or digit`}
	}
	return nil
}

func validateImage(image string) error {
	if image != "" && image != HostImage {
		return &FieldError{"image", Quote(image), `unknown image; the one there is: "host"`}
	}
	return nil
}

// maxHostname is __NEW_UTS_LEN of <linux/utsname.h>; RFC 1123 would allow 255.
const maxHostname = 64

// validateHostname applies RFC 1123 section 2.1: labels of 1 to 63 letters,
// digits and hyphens, separated by dots, with no hyphen at either end.
func validateHostname(name string) error {
	if name == "" {
		return nil
	}
	bad := &FieldError{"hostname", Quote(name), `must be at most 64 letters, digits, "-" and ".", as RFC 1123 has it`}
	if len(name) > maxHostname {
		return bad
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > 63 || !only(label, alnum+"-") || strings.Trim(label, "-") != label {
			return bad
		}
	}
	return nil
}

func (u User) validate(field string) error {
	for _, id := range []struct {
		name  string
		value int
	}{{"uid", u.UID}, {"gid", u.GID}} {
		if id.value < 0 || id.value > MaxID {
			return &FieldError{field + "." + id.name, fmt.Sprint(id.value), fmt.Sprintf("must be 0 to %d", MaxID)}
		}
	}
	return nil
}

func validateUpper(writable bool, size int64) error {
	if size != 0 && !writable {
		return &FieldError{"upper_size", FormatSize(size), "needs a writable root"}
	}
	return validateSize("upper_size", size, MinTmpSize)
}

// validateSize checks a size that may be left at 0 but may not be unlimited.
func validateSize(field string, n, lowest int64) error {
	if n != 0 && (n < lowest || n > MaxMemory) {
		return &FieldError{field, sizeValue(n), fmt.Sprintf("must be %s to %s", FormatSize(lowest), FormatSize(MaxMemory))}
	}
	return nil
}

// sizeValue writes n so that a negative number shows as what it is.
func sizeValue(n int64) string {
	if n < 0 {
		return fmt.Sprint(n)
	}
	return FormatSize(n)
}

// maxPath is PATH_MAX without its NUL.
const maxPath = 4095

func validatePath(field, p string) error {
	switch {
	case strings.ContainsRune(p, 0):
		return &FieldError{field, Quote(p), "must not contain a NUL byte"}
	case len(p) > maxPath:
		return &FieldError{field, Quote(p), fmt.Sprintf("must be at most %d bytes long", maxPath)}
	case !strings.HasPrefix(p, "/"):
		return &FieldError{field, Quote(p), `must be an absolute path, starting with "/"`}
	}
	return nil
}
