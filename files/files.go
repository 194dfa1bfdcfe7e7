package files

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/boxd/boxd/engine"
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
// A limit of 0 is DefaultSize. Info.Size is the size of the whole file.
func Read(ctx context.Context, box engine.Box, o Options, path string, offset, limit int64, w io.Writer) (Info, error) {
	return Info{}, errors.ErrUnsupported
}

// Write makes r the content of the regular file at path. The file is replaced at
// once and as a whole, or not at all, and becomes the user's; but Append adds to the
// file that is there. When Write fails before r has ended, a Read of r may still be
// under way afterwards, and its result is dropped.
func Write(ctx context.Context, box engine.Box, o Options, path string, r io.Reader, w WriteOptions) (Info, error) {
	return Info{}, errors.ErrUnsupported
}

// List describes the files in the directory at path, sorted by name: the first most
// of them, and whether there are more. 0 is DefaultEntries, above MaxEntries is
// refused.
func List(ctx context.Context, box engine.Box, o Options, path string, most int) (list []Info, truncated bool, err error) {
	return nil, false, errors.ErrUnsupported
}

// Stat describes what path leads to. For a symlink, Target is set, and a symlink that
// leads nowhere is described itself.
func Stat(ctx context.Context, box engine.Box, o Options, path string) (Info, error) {
	return Info{}, errors.ErrUnsupported
}

// Remove removes a file, a symlink (not what it leads to) or an empty directory; with
// recursive, a directory with all that is in it, mounts in it excepted.
func Remove(ctx context.Context, box engine.Box, o Options, path string, recursive bool) error {
	return errors.ErrUnsupported
}

// Mkdir makes a directory with mode 0755. With parents it makes those above as well,
// and a directory that exists is no error.
func Mkdir(ctx context.Context, box engine.Box, o Options, path string, parents bool) error {
	return errors.ErrUnsupported
}
