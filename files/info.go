package files

import (
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/boxd/boxd/agent/files/proto"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
)

// Bounds of the kernel, without the final NUL.
const (
	maxPath = 4095
	maxName = 255
)

// brokenRule returns the rule for paths and symlink targets that p breaks, or "".
func brokenRule(p string) string {
	switch {
	case p == "":
		return "must not be empty"
	case strings.Contains(p, "\x00"):
		return "must not contain a NUL byte"
	case len(p) > maxPath:
		return fmt.Sprintf("is %d bytes long, must be at most %d", len(p), maxPath)
	}
	return ""
}

// checkPath refuses a value of field that cannot be the path of a file.
func checkPath(field, p string) error {
	rule := brokenRule(p)
	for name := range strings.SplitSeq(p, "/") {
		if rule == "" && len(name) > maxName {
			rule = fmt.Sprintf("has a component of %d bytes, must be at most %d", len(name), maxName)
		}
	}
	if rule == "" {
		return nil
	}
	return &engine.FieldError{Field: field, Value: spec.Quote(p), Rule: rule}
}

// describe checks the box's description of a file. A value that is merely odd is
// clamped, so that one odd file does not hide the others of its directory.
func describe(f proto.Info, name, path string) (Info, error) {
	kind := typeName(f.Mode)
	if kind == "" || f.Size < 0 || len(f.Target) > maxPath || strings.Contains(string(f.Target), "\x00") {
		return Info{}, fmt.Errorf("file %s of mode %o and %d bytes: %w", spec.Quote(name), f.Mode, f.Size, proto.ErrProtocol)
	}
	return Info{
		Name: name, Path: path, Size: f.Size, Mode: fmt.Sprintf("%04o", f.Mode&0o7777), Type: kind,
		ModTime: timeOf(f.Sec, f.Nsec), UID: int(f.UID), GID: int(f.GID), Target: string(f.Target),
	}, nil
}

// isName reports whether a directory can have an entry of that name.
func isName(s string) bool {
	return s != "" && s != "." && s != ".." && len(s) <= maxName && !strings.ContainsAny(s, "/\x00")
}

// typeName names the file type in a mode of stat(2).
func typeName(mode uint32) string {
	switch mode & syscall.S_IFMT {
	case syscall.S_IFREG:
		return "file"
	case syscall.S_IFDIR:
		return "dir"
	case syscall.S_IFLNK:
		return "symlink"
	case syscall.S_IFIFO:
		return "fifo"
	case syscall.S_IFSOCK:
		return "socket"
	case syscall.S_IFBLK, syscall.S_IFCHR:
		return "device"
	}
	return ""
}

// Times that RFC 3339 can write: the years 0 to 9999.
const (
	firstSecond = -62167219200
	lastSecond  = 253402300799
)

func timeOf(sec, nsec int64) time.Time {
	return time.Unix(min(max(sec, firstSecond), lastSecond), min(max(nsec, 0), 999999999)).UTC()
}

// printable makes text from the box one line of bounded length.
func printable(s string) string {
	const most = 100
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, s)
	return s[:min(len(s), most)]
}
