package langbot

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/images"
	"github.com/boxd/boxd/internal/oneline"
	"github.com/boxd/boxd/langbot/protocol"
	"github.com/boxd/boxd/policy"
	"github.com/boxd/boxd/session"
)

// classes maps conditions to classes of the protocol; the first match counts.
var classes = []struct {
	is    error
	class protocol.Class
}{
	{session.ErrClosed, protocol.RuntimeUnavailable},
	{errShutdown, protocol.RuntimeUnavailable},
	{policy.ErrQuota, protocol.CapacityExceeded},
	{policy.ErrRate, protocol.CapacityExceeded},
	{engine.ErrInvalid, protocol.BoxValidation},
	{policy.ErrDenied, protocol.BoxValidation},
	{engine.ErrUnenforceable, protocol.BoxValidation},
	{session.ErrImageNotPresent, protocol.BoxValidation},
	{engine.ErrNoLayer, protocol.BoxValidation},
	{images.ErrRefused, protocol.BoxValidation},
	{engine.ErrNoLauncher, protocol.BackendUnavailable},
	{engine.ErrNoEngine, protocol.BackendUnavailable},
	{session.ErrConflict, protocol.SessionConflict},
	{session.ErrNotFound, protocol.SessionNotFound},
}

// fail translates an error for the client. ctx is the context that the action had.
func (k *call) fail(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if known, ok := errors.AsType[*protocol.Error](err); ok {
		return known
	}
	if known, ok := errors.AsType[*protocol.Error](context.Cause(ctx)); ok {
		return known // why the action was cancelled, such as a newer generation
	}
	class := protocol.BoxError
	for _, c := range classes {
		if errors.Is(err, c.is) {
			class = c.class
			break
		}
	}
	text := k.words(err)
	if class == protocol.BoxError && errors.Is(context.Cause(ctx), errLate) {
		class, text = protocol.BackendUnavailable, fmt.Sprintf("%s was given up because it took too long: %s", k.action, text)
	}
	return protocol.Errorf(class, "%s", text)
}

// words is err on one line, with the session names that the client knows.
func (k *call) words(err error) string {
	text := oneline.Fold(err.Error())
	if k.at.Workspace != "" {
		text = strings.ReplaceAll(text, k.at.Runtime()+"-", "")
	}
	return text
}

func notFound(at protocol.Context, physical string) error {
	return protocol.Errorf(protocol.SessionNotFound, "session %s not found", at.Logical(physical))
}

func processNotFound(b *box, id string) error {
	return protocol.Errorf(protocol.ManagedProcessNotFound, "managed process %s in session %s not found", id, b.logical())
}
