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

// Bounds of the operations.
const (
	// DefaultTimeout of an operation.
	DefaultTimeout = 30 * time.Second
	// DefaultSize in bytes of what is read or written where nothing else is said.
	DefaultSize = 64 << 20
	// DefaultEntries and MaxEntries of a directory that is listed.
	DefaultEntries = 1000
	MaxEntries     = 10000
)

// Conditions that callers tell apart with errors.Is. Others are fs.ErrNotExist,
// fs.ErrExist, fs.ErrPermission, engine.ErrInvalid, the errno that the box's kernel
// gave, and the errors of engine.
var (
	// ErrTooLarge: there is more than was to be written, or to be listed.
	ErrTooLarge = errors.New("too large")
	// ErrNotRegular: a FIFO, socket, device or directory in place of a file.
	ErrNotRegular = errors.New("not a regular file")
	// ErrRefused: the kernel refused the operation in the box; the error has its errno.
	ErrRefused = errors.New("refused in the box")
	// ErrTimeout: the operation did not end in time.
	ErrTimeout = errors.New("timed out")
	// ErrProtocol: the answer was not one. Something in the box disturbed it.
	ErrProtocol = errors.New("no valid answer from the box")
)

// Options of every operation.
type Options struct {
	// User does it; nil is the box's user.
	User *engine.User
	// Timeout bounds all of the operation; 0 is DefaultTimeout.
	Timeout time.Duration
}

// Info describes a file. The box said so: it is to be shown, not to be relied on.
type Info struct {
	// Name is the last part of the path, Path the path that was asked for, or that
	// of the directory joined with the name. They may not be valid UTF-8.
	Name string `json:"name"`
	Path string `json:"path"`
	Size int64  `json:"size"`
	// Mode is the permission bits in octal, such as "0644".
	Mode string `json:"mode"`
	// Type is "file", "dir", "symlink", "fifo", "socket" or "device".
	Type    string    `json:"type"`
	ModTime time.Time `json:"mod_time"`
	UID     int       `json:"uid"` // in the box
	GID     int       `json:"gid"`
	// Target is what a symlink holds.
	Target string `json:"target,omitempty"`
}

// WriteOptions say how to write.
type WriteOptions struct {
	// Mode is the permission bits of the file, at most 0o777; 0 keeps those of a
	// file that is replaced, and gives a new one 0644.
	Mode uint32
	// Append adds to the file, which is made if it is missing, instead of replacing
	// it.
	Append bool
	// MakeParents makes missing directories above the file.
	MakeParents bool
	// MaxBytes bounds what is written; 0 is DefaultSize. More is ErrTooLarge, and
	// nothing is changed.
	MaxBytes int64
}

// Read copies at most limit bytes of the regular file at path, from offset on, to w.
// A limit of 0 is DefaultSize. Info.Size is the size of the whole file; files of
// /proc have none and content all the same.
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

// Write makes content that of the regular file at path. The file is replaced at once
// and as a whole, or not at all, and becomes the user's; but Append adds to the file
// that is there. When Write fails before content has ended, a Read of it may still be
// under way afterwards, and its result is dropped.
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

// List describes the files in the directory at path, sorted by name: the first most
// of them, and whether there are more. 0 is DefaultEntries, above MaxEntries is
// refused. Symlinks are described, not followed.
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

// Stat describes what path leads to. For a symlink, Target is set, and a symlink that
// leads nowhere is described itself.
func Stat(ctx context.Context, box engine.Box, o Options, path string) (Info, error) {
	r := request{verb: "describing", path: path, args: []string{"stat", path}}
	reply, err := r.run(ctx, box, o)
	if err != nil {
		return Info{}, err
	}
	return r.info(reply)
}

// Remove removes a file, a symlink (not what it leads to) or an empty directory; with
// recursive, a directory with all that is in it. It stops at the first thing that
// cannot be removed, which a mount in the directory is.
func Remove(ctx context.Context, box engine.Box, o Options, path string, recursive bool) error {
	r := request{verb: "removing", path: path, args: []string{"remove", path, flag(recursive, "recursive")}}
	_, err := r.run(ctx, box, o)
	return err
}

// MkdirOptions say how to make a directory.
type MkdirOptions struct {
	// Mode is the permission bits of the directory, at most 0o777; 0 is 0755.
	Mode uint32
	// Parents makes missing directories above as well, with mode 0755. A directory
	// that exists is no error then, and stays as it is.
	Parents bool
}

// Mkdir makes a directory.
func Mkdir(ctx context.Context, box engine.Box, o Options, path string, m MkdirOptions) error {
	if err := checkMode(m.Mode); err != nil {
		return err
	}
	r := request{verb: "making", path: path, args: []string{"mkdir", path, fmt.Sprintf("%o", m.Mode), flag(m.Parents, "parents")}}
	_, err := r.run(ctx, box, o)
	return err
}

// Symlink makes a symlink at path that holds target. It replaces a file or symlink that
// is there.
func Symlink(ctx context.Context, box engine.Box, o Options, path, target string) error {
	if rule := brokenRule(target); rule != "" {
		return &engine.FieldError{Field: "target", Value: spec.Quote(target), Rule: rule}
	}
	r := request{verb: "making symlink", path: path, args: []string{"symlink", path, target}}
	_, err := r.run(ctx, box, o)
	return err
}

func checkMode(mode uint32) error {
	if mode > 0o777 {
		return &engine.FieldError{Field: "mode", Value: fmt.Sprintf("0%o", mode), Rule: "must be permission bits, at most 0777"}
	}
	return nil
}

// flag is an argument that says yes by its name.
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
