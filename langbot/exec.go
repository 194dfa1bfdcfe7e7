package langbot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/langbot/protocol"
	"github.com/boxd/boxd/session"
)

// execResult is the protocol's result of a command, followed by an extension for clients that
// know it: why the command ended, and what was refused to the session meanwhile.
type execResult struct {
	protocol.ExecutionResult
	Verdict engine.Verdict   `json:"verdict"`
	Limit   string           `json:"limit,omitempty"`
	Denied  []session.Denial `json:"denied,omitempty"`
}

// maxToldDenials is how many refusals the stderr of a failed command tells.
const maxToldDenials = 5

// tellDenials adds to the stderr of a failed command what boxd refused to it: LangBot's client drops
// what the protocol does not have, and many programs only say that their connection failed.
func tellDenials(stderr string, denied []session.Denial) string {
	for _, d := range denied[:min(len(denied), maxToldDenials)] {
		stderr = strings.TrimPrefix(fmt.Sprintf("%s\nboxd: refused: %s %s (rule: %s)", stderr, d.Kind, d.What, d.Rule), "\n")
	}
	return stderr
}

// cancelGrace is the time between SIGTERM and SIGKILL for a command whose client disconnected.
const cancelGrace = 2 * time.Second

// maxTries bounds how often the session is created for one command, in case it expires between
// the lookup and the command.
const maxTries = 3

// exec runs a command in the session that the spec asks for.
func (k *call) exec(ctx context.Context) (any, error) {
	spec, err := k.spec(ctx, true)
	if err != nil {
		return nil, err
	}
	for try := 1; ; try++ {
		b, _, err := k.ensure(ctx, spec)
		if err != nil {
			return nil, err
		}
		out, err := k.run(ctx, b, spec)
		if !errors.Is(err, session.ErrNotFound) || try == maxTries {
			return out, err
		}
		if err := k.s.vanished(ctx, b); err != nil {
			return nil, err
		}
	}
}

// run runs the command of spec in b.
func (k *call) run(ctx context.Context, b *box, spec *protocol.BoxSpec) (any, error) {
	var stdout, stderr clip
	began := time.Now()
	result := func(res session.ExecResult) execResult {
		out := execResult{Verdict: res.Verdict, Limit: res.Limit, Denied: res.Denied, ExecutionResult: protocol.ExecutionResult{
			SessionID: b.logical(), BackendName: k.s.backendName(), Status: protocol.Completed,
			Stdout: stdout.text(), Stderr: stderr.text(), DurationMS: time.Since(began).Milliseconds(),
		}}
		if res.Verdict == engine.TimedOut {
			out.Status = protocol.TimedOut
			if out.Stderr == "" {
				out.Stderr = fmt.Sprintf("Command timed out after %d seconds.", int64(res.Timeout/time.Second))
			}
			return out
		}
		code := res.Status()
		out.ExitCode = &code
		if code != 0 {
			out.Stderr = tellDenials(out.Stderr, res.Denied)
		}
		return out
	}
	limit := time.Duration(min(spec.TimeoutSec, longest)) * time.Second
	res, err := k.s.sessions.Exec(ctx, k.who(), b.key, nil, session.Exec{
		Args: []string{"sh", "-lc", spec.Cmd}, Env: environment(spec.Env), Dir: spec.Workdir, MakeDir: true,
		Stdout: &stdout, Stderr: &stderr, NoOutputLimit: true,
		Timeout: limit, CancelGrace: cancelGrace, KeepBackground: true,
		Started: func(engine.Process) { k.clock.Reset(limit + execTime) },
		Ended: func(res session.ExecResult) {
			if res.Verdict != engine.Canceled && res.Verdict != engine.BoxLost {
				out := result(res)
				k.ran.Store(&out)
			}
			k.clock.Reset(execTime)
		},
	})
	out := result(res) // now, because it measures the duration
	if errors.Is(err, session.ErrNotFound) {
		return nil, err
	}
	if ctx.Err() != nil { // the command was killed for that, or did not begin
		return nil, fmt.Errorf("the command was given up: %w", context.Cause(ctx))
	}
	// The reference server lets the shell change to the working directory, and if that fails the
	// shell says so and exits. Anything else that keeps a command from starting is an error.
	if dir := new(engine.DirError); errors.As(err, &dir) {
		code := 1
		out.ExitCode, out.Stderr, out.Verdict = &code, "sh: "+dir.Error(), engine.Exited
		return out, nil
	}
	switch {
	case err != nil:
		return nil, cmp.Or(k.ended(b), err)
	case res.Verdict == engine.Canceled, res.Verdict == engine.BoxLost: // the command ended with its box
		lost := protocol.Errorf(protocol.BoxError, "the sandbox of session %s was lost while the command ran: how far it came is not known; the next command gets a new sandbox", b.logical())
		return nil, cmp.Or(k.ended(b), error(lost))
	case res.Verdict == engine.TimedOut && !k.s.o.TimeoutEndsCommand: // as the protocol demands
		err := k.s.end(ctx, k.who(), b, "another command in it took longer than it may, which ends the session")
		if err != nil && !errors.Is(err, errEnded) { // the removal continues in the background
			k.s.log.Warn("ending a session after a timeout", "session", b.physical, "error", err)
		}
	}
	return out, nil
}

// ended returns why b ended, nil if it has not.
func (k *call) ended(b *box) error {
	k.s.mu.Lock()
	state, why := b.state, b.ended
	k.s.mu.Unlock()
	if state != ending {
		return nil
	}
	if why == "" {
		why = "it has expired or was removed by the operator"
	}
	return protocol.Errorf(protocol.BoxError, "session %s ended while the command ran: %s", b.logical(), why)
}

// environment is env as KEY=VALUE, sorted, with the variable that the reference server adds.
func environment(env map[string]string) []string {
	list := make([]string, 0, len(env)+1)
	if _, ok := env["PYTHONUNBUFFERED"]; !ok {
		list = append(list, "PYTHONUNBUFFERED=1")
	}
	for name, value := range env {
		list = append(list, name+"="+value)
	}
	slices.Sort(list)
	return list
}

// longest, in seconds, is far above every cap, and small enough to count in nanoseconds.
const longest = 1 << 24
