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

// refusal is an answer for the client, one line. Its class is the one of the action.
type refusal string

func (r refusal) Error() string { return string(r) }

func refuse(format string, a ...any) error { return refusal(fmt.Sprintf(format, a...)) }

// errFull means that a tree, or its disk, is full.
const errFull = refusal("The skill storage of this workspace is full: delete something in it, or ask for more of it")

// classify turns err into an answer for the client. Paths in system errors are relative to the
// root of a tree, so they reveal nothing of the host.
func classify(class protocol.Class, err error) error {
	if e, ok := errors.AsType[*protocol.Error](err); ok {
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

// errEscapes means that a symlink leads out of its package.
var errEscapes = errors.New("path escapes from parent")

// escapes reports whether a call on an os.Root was refused because it would leave the root.
// Package os does not export this error.
func escapes(err error) bool { return err != nil && reason(err).Error() == errEscapes.Error() }

// quote returns a name that a client or a box chose, with unprintable characters escaped.
func quote(s string) string {
	for _, r := range s {
		if !strconv.IsPrint(r) {
			q := strconv.Quote(s)
			return q[1 : len(q)-1]
		}
	}
	return s
}

// reason is err without the path, which the message has already.
func reason(err error) error {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return p.Err
	}
	if l, ok := errors.AsType[*os.LinkError](err); ok {
		return l.Err
	}
	return err
}
