package files

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/boxd/boxd/agent/files/proto"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
)

// Defaults and bounds.
const (
	// DefaultTimeout bounds an operation whose Options set no Timeout.
	DefaultTimeout = 30 * time.Second
	// DefaultSize is the maximum number of bytes that Read and Write transfer if the
	// caller sets no limit.
	DefaultSize = 64 << 20
	// DefaultEntries is how many entries List returns if the caller sets no maximum,
	// and MaxEntries is the highest maximum.
	DefaultEntries = 1000
	MaxEntries     = 10000
)

// Errors to test for with errors.Is. An operation may also fail with fs.ErrNotExist,
// fs.ErrExist or fs.ErrPermission, with the syscall.Errno that the kernel returned in
// the box, with engine.ErrInvalid for a bad argument, and with the errors of
// [engine.Box].Start.
var (
	// ErrTooLarge: the content exceeds WriteOptions.MaxBytes.
	ErrTooLarge = errors.New("too large")
	// ErrNotRegular: the path leads to a FIFO, socket, device or directory where a
	// regular file is needed.
	ErrNotRegular = errors.New("not a regular file")
	// ErrRefused: the kernel refused the operation inside the box. The error also
	// matches the errno.
	ErrRefused = errors.New("refused in the box")
	// ErrTimeout: the operation did not finish within Options.Timeout.
	ErrTimeout = errors.New("timed out")
	// ErrProtocol: the box's answer was malformed, or there was none. Usually another
	// process of the box interfered.
	ErrProtocol = errors.New("no valid answer from the box")
)

// Options apply to every operation. The zero value is fine.
type Options struct {
	// User performs the operation; nil means the box's user.
	User *engine.User
	// Timeout bounds the whole operation, transfer included; 0 means DefaultTimeout.
	Timeout time.Duration
}

// Info describes a file as the box reported it. Show it, but do not base a security
// decision on it.
type Info struct {
	// Name is the last element of the path. Path is the path that was passed in; for
	// an entry of a listing, the directory's path joined with Name. Neither needs to
	// be valid UTF-8.
	Name string `json:"name"`
	Path string `json:"path"`
	Size int64  `json:"size"` // in bytes
	// Mode holds the permission bits in octal, such as "0644".
	Mode string `json:"mode"`
	// Type is "file", "dir", "symlink", "fifo", "socket" or "device".
	Type    string    `json:"type"`
	ModTime time.Time `json:"mod_time"`
	UID     int       `json:"uid"` // as seen in the box
	GID     int       `json:"gid"`
	// Target is the text of a symlink, not resolved; empty for other types.
	Target string `json:"target,omitempty"`
}

// WriteOptions control Write. The zero value replaces the file or creates it.
type WriteOptions struct {
	// Mode holds the permission bits, at most 0o777. With 0 a new file gets 0644 and
	// an existing one keeps its mode.
	Mode uint32
	// Append adds to the end of the file instead of replacing it. A missing file is
	// created.
	Append bool
	// MakeParents creates missing parent directories.
	MakeParents bool
	// MaxBytes limits the content; 0 means DefaultSize. Longer content is ErrTooLarge
	// and leaves the file unchanged.
	MaxBytes int64
}

// Read copies the content of the regular file at path to w, starting at offset and
// ending after limit bytes at the latest. A limit of 0 means DefaultSize. Info.Size is
// the size of the whole file; it is 0 for files of /proc, which have content anyway.
func Read(ctx context.Context, box engine.Box, o Options, path string, offset, limit int64, w io.Writer) (Info, error) {
	limit = cmp.Or(limit, DefaultSize)
	if err := errors.Join(notNegative("offset", offset), notNegative("limit", limit)); err != nil {
		return Info{}, err
	}
	r := request{
		verb: "reading", path: path, out: &bounded{w: w, left: limit},
		args: []string{"read", path, strconv.FormatInt(offset, 10), strconv.FormatInt(limit, 10)},
	}
	reply, err := r.run(ctx, box, o)
	if err != nil {
		return Info{}, err
	}
	return r.info(reply)
}

// Write stores content in the regular file at path. The file is replaced atomically,
// as a whole or not at all, and then belongs to the user who wrote it. With
// [WriteOptions].Append the existing file is extended in place instead.
//
// Write reads content until io.EOF. If Write fails earlier, one call of content.Read
// may still be in progress when it returns; the result of that call is discarded.
func Write(ctx context.Context, box engine.Box, o Options, path string, content io.Reader, w WriteOptions) (Info, error) {
	most := cmp.Or(w.MaxBytes, DefaultSize)
	if err := notNegative("max_bytes", most); err != nil {
		return Info{}, err
	}
	if err := checkMode(w.Mode); err != nil {
		return Info{}, err
	}
	how := "replace"
	if w.Append {
		how = "append"
	}
	in := &source{r: content, left: most}
	r := request{
		verb: "writing", path: path, in: in,
		args: []string{"write", path, fmt.Sprintf("%o", w.Mode), how, flag(w.MakeParents, "parents")},
	}
	reply, err := r.run(ctx, box, o)
	switch failed := in.failure(); {
	case errors.Is(failed, ErrTooLarge):
		return Info{}, fmt.Errorf("writing %s: %w: the content has more than %s", spec.Quote(path), ErrTooLarge, spec.FormatSize(most))
	case failed != nil:
		return Info{}, fmt.Errorf("writing %s: reading the content: %w", spec.Quote(path), failed)
	case err != nil:
		return Info{}, err
	}
	return r.info(reply)
}

// List returns at most the given number of entries of the directory at path, sorted by
// name; truncated reports whether there are more. If most is 0, it is DefaultEntries; more
// than MaxEntries is invalid. Symlinks are described, not followed.
func List(ctx context.Context, box engine.Box, o Options, path string, most int) (list []Info, truncated bool, err error) {
	most = cmp.Or(most, DefaultEntries)
	if most < 0 || most > MaxEntries {
		return nil, false, &engine.FieldError{Field: "max", Value: strconv.Itoa(most), Rule: fmt.Sprintf("must be 0 to %d", MaxEntries)}
	}
	var out bytes.Buffer
	r := request{
		verb: "listing", path: path, out: &bounded{w: &out, left: maxListing},
		args: []string{"list", path, strconv.Itoa(most)},
	}
	reply, err := r.run(ctx, box, o)
	if err != nil {
		return nil, false, err
	}
	found, err := proto.ParseList(out.Bytes(), most)
	if err != nil {
		return nil, false, r.disturbed(err)
	}
	for _, f := range found {
		name := string(f.Name)
		i, err := describe(f, name, strings.TrimSuffix(path, "/")+"/"+name)
		if err == nil && !isName(name) {
			err = fmt.Errorf("name %s: %w", spec.Quote(name), proto.ErrProtocol)
		}
		if err != nil {
			return nil, false, r.disturbed(err)
		}
		list = append(list, i)
	}
	slices.SortFunc(list, func(a, b Info) int { return strings.Compare(a.Name, b.Name) })
	return list, reply.Truncated, nil
}

// Stat describes the file at path, following symlinks. If path is a symlink, Target is
// its text; a dangling symlink is described itself.
func Stat(ctx context.Context, box engine.Box, o Options, path string) (Info, error) {
	r := request{verb: "describing", path: path, args: []string{"stat", path}}
	reply, err := r.run(ctx, box, o)
	if err != nil {
		return Info{}, err
	}
	return r.info(reply)
}

// Remove removes a file, a symlink (not its target) or an empty directory. With
// recursive it removes a directory and everything in it, and stops at the first entry
// that cannot be removed, for example a mount point.
func Remove(ctx context.Context, box engine.Box, o Options, path string, recursive bool) error {
	r := request{verb: "removing", path: path, args: []string{"remove", path, flag(recursive, "recursive")}}
	_, err := r.run(ctx, box, o)
	return err
}

// MkdirOptions control Mkdir.
type MkdirOptions struct {
	// Mode holds the permission bits, at most 0o777; 0 means 0755.
	Mode uint32
	// Parents also creates missing parent directories, with mode 0755. An existing
	// directory is then not an error, and keeps its mode.
	Parents bool
}

// Mkdir creates a directory. Without Parents an existing one is fs.ErrExist.
func Mkdir(ctx context.Context, box engine.Box, o Options, path string, m MkdirOptions) error {
	if err := checkMode(m.Mode); err != nil {
		return err
	}
	r := request{verb: "making", path: path, args: []string{"mkdir", path, fmt.Sprintf("%o", m.Mode), flag(m.Parents, "parents")}}
	_, err := r.run(ctx, box, o)
	return err
}

// Symlink creates a symlink at path with the text target, which need not exist. It
// replaces a file or symlink at path, but not a directory.
func Symlink(ctx context.Context, box engine.Box, o Options, path, target string) error {
	if rule := brokenRule(target); rule != "" {
		return &engine.FieldError{Field: "target", Value: spec.Quote(target), Rule: rule}
	}
	r := request{verb: "making symlink", path: path, args: []string{"symlink", path, target}}
	_, err := r.run(ctx, box, o)
	return err
}

// Rename renames the file, symlink or directory at path to to, which is a path like path. With
// replace it atomically replaces a file or symlink that is there, and a directory an empty
// directory; without it that is fs.ErrExist. Both paths must be in one file system of the box.
func Rename(ctx context.Context, box engine.Box, o Options, path, to string, replace bool) error {
	if err := checkPath("to", to); err != nil {
		return err
	}
	r := request{verb: "renaming", path: path, args: []string{"rename", path, to, flag(replace, "replace")}, relative: !strings.HasPrefix(to, "/")}
	_, err := r.run(ctx, box, o)
	return err
}

func checkMode(mode uint32) error {
	if mode > 0o777 {
		return &engine.FieldError{Field: "mode", Value: fmt.Sprintf("0%o", mode), Rule: "must be permission bits, at most 0777"}
	}
	return nil
}

// flag is an argument whose presence means yes.
func flag(yes bool, name string) string {
	if yes {
		return name
	}
	return "-"
}

func notNegative(field string, n int64) error {
	if n < 0 {
		return &engine.FieldError{Field: field, Value: strconv.FormatInt(n, 10), Rule: "must not be negative"}
	}
	return nil
}
