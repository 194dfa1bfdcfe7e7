package launcher

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// RootsFile names mount roots for every launcher service of this host. It need not exist.
const RootsFile = "/etc/boxd/launcher.yaml"

// maxRootsFile bounds it in bytes.
const maxRootsFile = 64 << 10

// readRootsFile returns the mount roots that the file at path names. The file and its
// directory must belong to root and be writable by root only.
func readRootsFile(path string) ([]string, error) {
	dir, err := linux.Openat2(nil, filepath.Dir(path), unix.OpenHow{
		Flags: unix.O_PATH | unix.O_DIRECTORY, Resolve: unix.RESOLVE_NO_SYMLINKS,
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("mount roots: %w", err)
	}
	defer dir.Close()
	f, err := linux.Openat2(dir, filepath.Base(path), unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_NONBLOCK, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if errors.Is(err, unix.ELOOP) {
		return nil, fmt.Errorf("mount roots: %q must not be a symlink", path)
	}
	if err != nil {
		return nil, fmt.Errorf("mount roots: %q: %w", path, err)
	}
	defer f.Close()
	above, aerr := linux.Fstat(dir)
	st, err := linux.Fstat(f)
	if err := errors.Join(aerr, err); err != nil {
		return nil, fmt.Errorf("mount roots: %q: %w", path, err)
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil, fmt.Errorf("mount roots: %q must be a regular file", path)
	case !isRoots(st):
		return nil, fmt.Errorf("mount roots: %q must belong to root and be writable by nobody else (chown root, chmod go-w)", path)
	case !isRoots(above):
		return nil, fmt.Errorf("mount roots: the directory of %q must belong to root and be writable by nobody else (chown root, chmod go-w)", path)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxRootsFile+1))
	if err == nil && len(text) > maxRootsFile {
		err = fmt.Errorf("is longer than %d bytes", maxRootsFile)
	}
	if err != nil {
		return nil, fmt.Errorf("mount roots: %q: %w", path, err)
	}
	roots, err := parseRootsFile(string(text))
	if err != nil {
		return nil, fmt.Errorf("mount roots: %s:%w", path, err)
	}
	return roots, nil
}

// isRoots reports whether only root can change a file. An ACL that lets others write shows
// in the group's bits (acl(5)).
func isRoots(st unix.Stat_t) bool { return st.Uid == 0 && st.Mode&0o022 == 0 }

// parseRootsFile reads the only key that the file may have:
//
//	mount_roots: [/srv/a, "/srv/b:ro"]
//
// or, with each root on a line of its own,
//
//	mount_roots:
//	  - /srv/a
//	  - '/srv/b:ro:no-root-owned'
//
// It accepts this subset of YAML, with the same meaning, and refuses the rest, so that a
// process that runs as root needs no YAML library. Errors begin with the line number.
func parseRootsFile(text string) (roots []string, err error) {
	number, at, list, seen := 0, -1, false, false
	fail := func(format string, args ...any) ([]string, error) {
		return nil, fmt.Errorf("%d: %w", number, fmt.Errorf(format, args...))
	}
	for line := range strings.SplitSeq(text, "\n") {
		number++
		line = strings.TrimSuffix(line, "\r")
		if strings.ContainsFunc(line, func(r rune) bool {
			return r < 0x20 || r == 0x7f || r == '\ufeff' || r == '\ufffd' || r == '\u2028' || r == '\u2029' || r == '\u0085'
		}) {
			return fail("has a tab or another character that must not be here")
		}
		body := strings.TrimLeft(line, " ")
		indent := len(line) - len(body)
		if body = strings.TrimRight(body, " "); body == "" || body[0] == '#' {
			continue
		}
		if item, ok := strings.CutPrefix(body, "- "); ok && list {
			if at < 0 {
				at = indent
			}
			root, rest, err := cutScalar(strings.TrimLeft(item, " "), false)
			switch {
			case err != nil:
				return fail("%w", err)
			case indent != at:
				return fail("must be indented as the line of the first root")
			case !isComment(rest):
				return fail("has more than one root")
			}
			roots = append(roots, root)
		} else {
			value, ok := strings.CutPrefix(body, "mount_roots:")
			if !ok || indent != 0 {
				return fail(`must be "mount_roots:", the only key, or "- DIR" below it`)
			}
			if seen {
				return fail("mount_roots is there twice")
			}
			seen = true
			if isComment(value) {
				list = true
				continue
			}
			value, ok = strings.CutPrefix(value, " ")
			if value = strings.TrimLeft(value, " "); !ok || value == "" || value[0] != '[' {
				return fail("mount_roots must be a list: [DIR, DIR], or a line with \"- DIR\" for each")
			}
			if roots, err = flowList(value); err != nil {
				return fail("%w", err)
			}
		}
		if len(roots) > maxRoots {
			return fail("are more than %d roots", maxRoots)
		}
	}
	return roots, nil
}

// flowList reads "[a, b]".
func flowList(s string) (list []string, err error) {
	for rest := strings.TrimLeft(s[1:], " "); ; rest = strings.TrimLeft(rest, " ") {
		if after, ok := strings.CutPrefix(rest, "]"); ok {
			if !isComment(after) {
				return nil, errors.New("has something after the list")
			}
			return list, nil
		}
		root, after, err := cutScalar(rest, true)
		if err != nil {
			return nil, err
		}
		list = append(list, root)
		after = strings.TrimLeft(after, " ")
		switch {
		case strings.HasPrefix(after, ","):
			rest = after[1:]
		case strings.HasPrefix(after, "]"):
			rest = after
		default:
			return nil, errors.New("has a list that does not end on its line, or something between two roots other than a comma")
		}
	}
}

// cutScalar cuts a root from the beginning of s: a quoted string, or plain text that begins
// with a slash.
func cutScalar(s string, flow bool) (value, rest string, err error) {
	if s == "" {
		return "", "", errors.New("names no directory")
	}
	if quote := s[0]; quote == '"' || quote == '\'' {
		end := strings.IndexByte(s[1:], quote) + 1
		if end == 0 {
			return "", "", errors.New("has a quote that does not end on its line")
		}
		value, rest = s[1:end], s[end+1:]
		if strings.Contains(value, `\`) || strings.HasPrefix(rest, string(quote)) {
			return "", "", errors.New("must have neither backslashes nor quotes within quotes")
		}
		return value, rest, nil
	}
	if s[0] != '/' {
		return "", "", errors.New("must name an absolute path, plain or in quotes")
	}
	end := len(s)
	if i := strings.Index(s, " #"); i >= 0 {
		end = i
	}
	if i := strings.IndexAny(s[:end], ",]"); flow && i >= 0 {
		end = i
	}
	value, rest = strings.TrimRight(s[:end], " "), s[end:]
	if strings.ContainsAny(value, "[]{},#&*!|>'\"%@`\\") || strings.Contains(value, ": ") || strings.HasSuffix(value, ":") {
		return "", "", errors.New("has a character that a root without quotes cannot have: put it in quotes")
	}
	return value, rest, nil
}

// isComment reports whether the rest of a line has nothing but a comment.
func isComment(rest string) bool {
	trimmed := strings.TrimLeft(rest, " ")
	return trimmed == "" || trimmed[0] == '#' && trimmed != rest
}
