package skills

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"

	"github.com/boxd/boxd/internal/diskroom"
	"github.com/boxd/boxd/internal/oneline"
	"github.com/boxd/boxd/langbot/protocol"
)

// refusal is what a client is told, one line. Its class is the action's.
type refusal string

func (r refusal) Error() string { return string(r) }

func refuse(format string, a ...any) error { return refusal(fmt.Sprintf(format, a...)) }

// errFull is a tree, or a disk, that has no room.
const errFull = refusal("The skill storage of this workspace is full: delete something in it, or ask for more of it")

// classify makes err the answer to a client. Paths in errors of the system are beneath
// the root of a tree: nothing of the host's.
func classify(class protocol.Class, err error) error {
	var e *protocol.Error
	if errors.As(err, &e) {
		if class == protocol.BoxValidation {
			return protocol.Errorf(class, "%s", e.Text)
		}
		return e
	}
	if diskroom.IsFull(err) {
		err = errFull
	}
	return protocol.Errorf(class, "%s", oneline.Error(err))
}

// errEscapes is a symlink that leads out of its package.
var errEscapes = errors.New("path escapes from parent")

// escapes reports whether a call on an os.Root was refused for leading out of it. The
// package os has no name for its error.
func escapes(err error) bool { return err != nil && reason(err).Error() == errEscapes.Error() }

// quote writes what a client or a box named, on one line, unless it is harmless as it is.
func quote(s string) string {
	for _, r := range s {
		if !strconv.IsPrint(r) {
			q := strconv.Quote(s)
			return q[1 : len(q)-1]
		}
	}
	return s
}

// reason is err without the name, which is said already.
func reason(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	var l *os.LinkError
	if errors.As(err, &l) {
		return l.Err
	}
	return err
}
