package session

import (
	"context"

	"github.com/boxd/boxd/engine"
)

// Process is a managed process of a session. It is safe for concurrent use. One
// that is started again under the same id is another Process.
type Process struct{}

// View returns its state. It does not count as use.
func (p *Process) View() ProcessView { return ProcessView{} }

// Live returns the engine's process with its streams: nil while it starts, and if
// its box was lost before this manager was opened.
func (p *Process) Live() engine.ManagedProcess { return nil }

// Touch counts as use of the session. It is cheap enough for every message.
func (p *Process) Touch() {}

// Done is closed when the process has ended and its end is recorded: from then on
// View and Result tell it. All output is in the streams by then.
func (p *Process) Done() <-chan struct{} { return nil }

// Result is how it ended, after Done.
func (p *Process) Result() engine.Result { return engine.Result{} }

// Gone is closed when the process is removed or replaced, with its output.
func (p *Process) Gone() <-chan struct{} { return nil }

// Stop closes stdin, sends SIGTERM to the whole tree and kills it after a grace;
// it returns when the process has ended. If ctx ends before that, it goes on by
// itself. One that has ended is no error.
func (p *Process) Stop(ctx context.Context, c Caller, o StopOptions) error { return nil }

// Remove stops the process if it runs, and forgets it with its output.
func (p *Process) Remove(ctx context.Context, c Caller) error { return nil }
