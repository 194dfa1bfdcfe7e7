package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/installed"
)

// fake is an engine with one box whose commands do what the test says.
type fake struct {
	t *testing.T
	// behave plays the command; nil exits with 0.
	behave func(p *fakeProcess) engine.Result
	// Errors to return.
	newErr, createErr, startErr, removeErr, closeErr error
	// files are what can be read in a box.
	files map[string]string
	// hold delays Create until its context ends.
	hold bool

	// What the engine has received.
	options EngineOptions
	spec    engine.Spec
	cmd     engine.Command
	creates int
	created chan struct{} // closed by the first Create
	log     []string      // start, remove and close, in order
}

func newFake(t *testing.T) *fake { return &fake{t: t, created: make(chan struct{})} }

func (f *fake) Create(ctx context.Context, spec engine.Spec) (engine.Box, error) {
	f.spec, f.creates = spec, f.creates+1
	if f.creates == 1 {
		close(f.created)
	}
	if f.hold {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if f.createErr != nil {
		return nil, f.createErr
	}
	return f, nil
}

func (f *fake) Close() error {
	f.log = append(f.log, "close")
	return f.closeErr
}

func (f *fake) ID() string                                  { return "fake" }
func (f *fake) Update(context.Context, engine.Change) error { return errors.ErrUnsupported }
func (f *fake) Done() <-chan struct{}                       { return nil }
func (f *fake) Remove(context.Context) error {
	f.log = append(f.log, "remove")
	return f.removeErr
}

func (f *fake) Start(ctx context.Context, cmd engine.Command) (engine.Process, error) {
	f.cmd = cmd
	if err := cmd.Validate(); err != nil {
		f.t.Errorf("Start got an invalid command: %v", err)
	}
	if f.startErr != nil {
		return nil, f.startErr
	}
	f.log = append(f.log, "start")
	return &fakeProcess{fake: f, ctx: ctx, cmd: cmd, signals: make(chan syscall.Signal, 8), sizes: make(chan engine.WindowSize, 8)}, nil
}

// fakeProcess is a running command.
type fakeProcess struct {
	fake    *fake
	ctx     context.Context
	cmd     engine.Command
	signals chan syscall.Signal
	sizes   chan engine.WindowSize
}

func (p *fakeProcess) Wait() (engine.Result, error) {
	if p.cmd.Builtin == engine.BuiltinFiles { // reads a file of an image
		text, ok := p.fake.files[p.cmd.Args[1]]
		if !ok {
			fmt.Fprintf(p.cmd.Stderr, `{"failure":{"errno":%d}}`+"\n", syscall.ENOENT)
			return engine.Result{Verdict: engine.Exited, ExitCode: 1}, nil
		}
		io.WriteString(p.cmd.Stdout, text)
		fmt.Fprintf(p.cmd.Stderr, `{"info":{"size":%d,"mode":%d}}`+"\n", len(text), syscall.S_IFREG|0o644)
		return engine.Result{Verdict: engine.Exited}, nil
	}
	if p.fake.behave == nil {
		return engine.Result{Verdict: engine.Exited}, nil
	}
	return p.fake.behave(p), nil
}

func (p *fakeProcess) Signal(sig syscall.Signal) error {
	p.signals <- sig
	return nil
}

func (p *fakeProcess) Resize(size engine.WindowSize) error {
	p.sizes <- size
	return nil
}

// invocation is an App around a fake engine.
type invocation struct {
	App
	fake           *fake
	stdout, stderr bytes.Buffer
	signals        chan os.Signal
}

func newInvocation(t *testing.T) *invocation {
	t.Helper()
	init := filepath.Join(t.TempDir(), installed.Init)
	if err := os.WriteFile(init, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"BOXD_INIT": init, "FROM_CALLER": "yes", "TERM": "vt220"}
	v := &invocation{fake: newFake(t), signals: make(chan os.Signal)}
	v.App = App{
		Version: "1.2.3",
		Stdin:   bytes.NewReader(nil),
		Stdout:  &v.stdout,
		Stderr:  &v.stderr,
		LookupEnv: func(key string) (string, bool) {
			value, ok := env[key]
			return value, ok
		},
		NewEngine: func(_ context.Context, options EngineOptions) (engine.Engine, error) {
			v.fake.options = options
			return v.fake, v.fake.newErr
		},
		CheckServe: func(ServeOptions) (found, warnings []error) { return nil, nil },
		Signals:    v.signals,
	}
	return v
}

// print writes s the way a command does.
func (p *fakeProcess) print(w io.Writer, s string) {
	if _, err := io.WriteString(w, s); err != nil {
		p.fake.t.Error(err)
	}
}
