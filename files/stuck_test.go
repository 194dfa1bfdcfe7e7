package files

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/boxd/boxd/engine"
)

// stuckBox is a box whose commands write stdout, close it if closes is set, and then run until they
// are killed.
type stuckBox struct {
	engine.Box
	stdout string
	closes bool
}

func (b *stuckBox) Start(ctx context.Context, cmd engine.Command) (engine.Process, error) {
	return &stuckProcess{ctx: ctx, b: b, cmd: cmd}, nil
}

type stuckProcess struct {
	engine.Process
	ctx context.Context
	b   *stuckBox
	cmd engine.Command
}

// Wait copies as engine/native does: after an error of the caller's writer it closes the pipe, which a
// silent command does not notice.
func (p *stuckProcess) Wait() (engine.Result, error) {
	copied := make(chan error, 1)
	go func() {
		end := make(chan struct{})
		defer context.AfterFunc(p.ctx, func() { close(end) })()
		if p.b.closes {
			end = nil
		}
		_, err := io.Copy(p.cmd.Stdout, struct{ io.Reader }{&open{strings.NewReader(p.b.stdout), end}})
		copied <- err
	}()
	<-p.ctx.Done()
	return engine.Result{Verdict: engine.Canceled, ExitCode: -1}, <-copied
}

// open does not end before its channel is closed.
type open struct {
	r   io.Reader
	end chan struct{} // nil: it ends at once
}

func (o *open) Read(p []byte) (int, error) {
	n, err := o.r.Read(p)
	if err == io.EOF && o.end != nil {
		<-o.end
	}
	return n, err
}

// TestStuck: an operation ends, and its command with it, when its output cannot be used or has ended,
// whatever the command does.
func TestStuck(t *testing.T) {
	full := errors.New("caller is full")
	whole := archiveOf(t, regular("a"))
	watch := func(ctx context.Context, b engine.Box) error {
		return Watch(ctx, b, Options{}, "d", WatchOptions{}, func(Change) error { return full })
	}
	pack := func(ctx context.Context, b engine.Box) error {
		return Pack(ctx, b, Options{Timeout: time.Hour}, "d", PackOptions{}, io.Discard)
	}
	packFull := func(ctx context.Context, b engine.Box) error {
		return Pack(ctx, b, Options{Timeout: time.Hour}, "d", PackOptions{}, failing{full})
	}
	for _, c := range []struct {
		what string
		do   func(context.Context, engine.Box) error
		b    *stuckBox
		want error
	}{
		{"malformed change", watch, &stuckBox{stdout: "x\n"}, ErrProtocol},
		{"endless line", watch, &stuckBox{stdout: strings.Repeat("x", 20000)}, ErrProtocol},
		{"refused change", watch, &stuckBox{stdout: `{"type":"ready"}` + "\n"}, full},
		{"end of changes", watch, &stuckBox{closes: true}, ErrProtocol},
		{"malformed archive", pack, &stuckBox{stdout: strings.Repeat("x", 2000)}, ErrProtocol},
		{"refused archive", packFull, &stuckBox{stdout: whole}, full},
		{"end of archive", pack, &stuckBox{stdout: whole, closes: true}, ErrProtocol},
		{"cut archive", pack, &stuckBox{stdout: whole[:600], closes: true}, ErrProtocol},
	} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			if err := c.do(t.Context(), c.b); !errors.Is(err, c.want) || strings.Contains(err.Error(), "canceled") {
				t.Errorf("%s: %v, want %v", c.what, err, c.want)
			}
			if took := time.Since(began); took > lingering {
				t.Errorf("%s: ended after %v", c.what, took)
			}
		})
	}
}
