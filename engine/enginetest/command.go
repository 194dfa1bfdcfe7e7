package enginetest

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
)

// command is a running command.
type command struct {
	l      *liveBox
	ctx    context.Context
	cmd    engine.Command
	done   chan struct{}
	result engine.Result // guarded by Box.mu
}

func (r *command) endLocked(result engine.Result) {
	if !isClosed(r.done) {
		r.result = result
		close(r.done)
	}
}

func (r *command) end(result engine.Result) {
	r.l.b.mu.Lock()
	defer r.l.b.mu.Unlock()
	r.endLocked(result)
}

// script returns the verb and the argument of a command, with or without a shell around it.
func script(args []string) (verb, argument string) {
	if len(args) > 2 && args[0] == "sh" {
		verb, argument, _ = strings.Cut(args[2], " ")
		return verb, argument
	}
	return args[0], strings.Join(args[1:], " ")
}

// Start knows the programs true, exit N, kill N (by a signal), oom, echo TEXT, err TEXT,
// fill N (bytes of output), hex BYTES, env, wait, die (which ends the box) and missing, alone
// or after sh -lc, and connections to the ports of [Box.Serve]. A directory "/file/…" cannot be made.
func (l *liveBox) Start(ctx context.Context, cmd engine.Command) (engine.Process, error) {
	if err := l.passStart(ctx, "start"); err != nil {
		return nil, err
	}
	if err := cmd.Validate(); err != nil {
		return nil, err
	}
	if _, err := spec.FindZygote(l.b.spec.Zygotes, cmd.Zygote, cmd.Args); err != nil {
		return nil, err
	}
	if verb, _ := script(cmd.Args); verb == "missing" {
		return nil, engine.ErrNotFound
	}
	if strings.HasPrefix(cmd.Dir, "/file/") {
		return nil, &engine.DirError{Err: fmt.Errorf("making %q: %w", cmd.Dir, syscall.ENOTDIR)}
	}
	r := &command{l: l, ctx: ctx, cmd: cmd, done: make(chan struct{})}
	l.b.mu.Lock()
	defer l.b.mu.Unlock()
	l.b.commands[r], l.b.last = struct{}{}, cmd
	if isClosed(l.b.dead) { // it has died since pass checked
		r.endLocked(lost)
	}
	return r, nil
}

// dial connects to a port of the box.
func (r *command) dial() {
	r.l.b.mu.Lock()
	answer := r.l.b.answer
	r.l.b.mu.Unlock()
	if answer == nil {
		io.WriteString(r.cmd.Stderr, "connecting: connection refused")
		r.end(engine.Result{Verdict: engine.Exited, ExitCode: 1})
		return
	}
	request, _ := io.ReadAll(r.cmd.Stdin)
	io.WriteString(r.cmd.Stdout, answer(r.cmd.Args[0], string(request)))
	r.end(engine.Result{Verdict: engine.Exited})
}

// readFile is the builtin that reads a file.
func (r *command) readFile() {
	host := r.l.b.host
	host.mu.Lock()
	files := host.files
	host.mu.Unlock()
	content, ok := "", false
	if files != nil && r.cmd.Args[0] == "read" {
		content, ok = files(r.l.b.Spec(), r.cmd.Args[1])
	}
	if !ok {
		fmt.Fprintf(r.cmd.Stderr, `{"failure":{"errno":%d}}`+"\n", syscall.ENOENT)
		r.end(engine.Result{Verdict: engine.Exited, ExitCode: 1})
		return
	}
	limit, _ := strconv.Atoi(r.cmd.Args[3])
	io.WriteString(r.cmd.Stdout, content[:min(limit, len(content))])
	fmt.Fprintf(r.cmd.Stderr, `{"info":{"size":%d,"mode":%d}}`+"\n", len(content), syscall.S_IFREG|0o644)
	r.end(engine.Result{Verdict: engine.Exited})
}

func (r *command) Signal(syscall.Signal) error    { return nil }
func (r *command) Resize(engine.WindowSize) error { return nil }

func (r *command) Wait() (engine.Result, error) {
	verb, argument := script(r.cmd.Args)
	n, _ := strconv.Atoi(argument)
	exited := engine.Result{Verdict: engine.Exited}
	if r.cmd.Builtin == engine.BuiltinDial {
		r.dial()
	}
	if r.cmd.Builtin == engine.BuiltinFiles {
		r.readFile()
	}
	switch verb {
	case "true", "unmeasured":
		r.end(exited)
	case "exit":
		r.end(engine.Result{Verdict: engine.Exited, ExitCode: n})
	case "kill":
		r.end(engine.Result{Verdict: engine.Signaled, ExitCode: -1, Signal: syscall.Signal(n)})
	case "oom":
		r.end(engine.Result{Verdict: engine.OOM, ExitCode: -1, Signal: syscall.SIGKILL, Limit: "64 MiB"})
	case "echo":
		io.WriteString(r.cmd.Stdout, argument)
		r.end(exited)
	case "err":
		io.WriteString(r.cmd.Stderr, argument)
		r.end(engine.Result{Verdict: engine.Exited, ExitCode: 1})
	case "fill":
		for range n / 1000 {
			io.WriteString(r.cmd.Stdout, strings.Repeat("x", 1000))
		}
		r.end(exited)
	case "hex":
		raw, _ := hex.DecodeString(argument)
		r.cmd.Stdout.Write(raw)
		r.end(exited)
	case "env":
		io.WriteString(r.cmd.Stdout, strings.Join(r.cmd.Env, ","))
		r.end(exited)
	case "die":
		r.l.b.Die()
	}
	var timeout <-chan time.Time
	if r.cmd.Timeout > 0 {
		timer := time.NewTimer(r.cmd.Timeout)
		defer timer.Stop()
		timeout = timer.C
	}
	select {
	case <-r.done:
	case <-r.ctx.Done():
		r.end(canceled)
	case <-timeout:
		r.end(engine.Result{Verdict: engine.TimedOut, ExitCode: -1, Signal: syscall.SIGTERM})
	case <-r.l.c.ctx.Done():
		return engine.Result{}, engine.ErrNoLauncher
	}
	r.l.b.mu.Lock()
	defer r.l.b.mu.Unlock()
	delete(r.l.b.commands, r)
	if verb == "unmeasured" {
		return r.result, errors.New("its output could not be copied")
	}
	return r.result, nil
}
