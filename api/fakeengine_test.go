package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/boxd/boxd/engine"
)

// fakeEngine makes boxes that isolate nothing: commands are processes of the host.
type fakeEngine struct {
	mu      sync.Mutex
	boxes   map[string]*fakeBox
	volumes []engine.Volume
	sick    error        // what Health and Create say
	waits   atomic.Bool  // for the reader of a command's output, without a bound, as a real engine does
	killed  chan string  // arguments of commands whose context ended
	old     atomic.Bool  // boxes cannot unpack
	stalls  atomic.Bool  // file operations never end
	started atomic.Int32 // file operations that stall
}

func newFakeEngine() *fakeEngine {
	return &fakeEngine{boxes: map[string]*fakeBox{}, killed: make(chan string, 100)}
}

func (e *fakeEngine) Create(_ context.Context, spec engine.Spec) (engine.LiveBox, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.sick != nil {
		return nil, e.sick
	}
	b := &fakeBox{engine: e, spec: spec, done: make(chan struct{}), events: make(chan engine.Event)}
	e.boxes[spec.ID] = b
	return b, nil
}

func (e *fakeEngine) Adopt(context.Context, string, engine.Spec) (engine.LiveBox, error) {
	return nil, engine.ErrBoxLost
}
func (e *fakeEngine) Boxes(context.Context) ([]string, error) { return nil, nil }

func (e *fakeEngine) Discard(context.Context, string) error { return nil }

func (e *fakeEngine) Health(context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.sick
}

func (e *fakeEngine) setHealth(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sick = err
}

type fakeBox struct {
	engine *fakeEngine
	once   sync.Once
	done   chan struct{}
	events chan engine.Event

	mu      sync.Mutex
	spec    engine.Spec
	managed []*fakeManaged
	dials   []net.Conn
}

func (b *fakeBox) ID() string            { return b.spec.ID }
func (b *fakeBox) Spec() engine.Spec     { b.mu.Lock(); defer b.mu.Unlock(); return b.spec }
func (b *fakeBox) Done() <-chan struct{} { return b.done }

func (b *fakeBox) Events() <-chan engine.Event { return b.events }

func (b *fakeBox) Update(_ context.Context, c engine.Change) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c.Limits != nil && c.Limits.Memory != 0 {
		b.spec.Limits.Memory = c.Limits.Memory
	}
	return nil
}

func (b *fakeBox) Remove(context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range b.managed {
		m.Kill(context.Background())
	}
	b.once.Do(func() { close(b.done); close(b.events) })
	return nil
}

func (b *fakeBox) Usage() (engine.Usage, error) {
	memory, pids := int64(1<<20), int64(3)
	return engine.Usage{Memory: &memory, PIDs: &pids}, nil
}

func (b *fakeBox) Ports() ([]engine.Port, error) {
	return []engine.Port{{Protocol: "tcp", Address: "127.0.0.1", Port: 8080}}, nil
}

// Dial connects to a port of the host.
func (b *fakeBox) Dial(ctx context.Context, port int) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err == nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.dials = append(b.dials, c)
	}
	return c, err
}

// dialled returns all connections to ports of boxes, closed ones too.
func (e *fakeEngine) dialled() (all []net.Conn) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, b := range e.boxes {
		b.mu.Lock()
		all = append(all, b.dials...)
		b.mu.Unlock()
	}
	return all
}

func (b *fakeBox) Listen(context.Context, ...netip.AddrPort) ([]net.Listener, error) {
	return nil, errors.ErrUnsupported
}

// command is what plays args in a box: this very binary for file operations.
func command(c engine.Command) *exec.Cmd {
	cmd := exec.Command(c.Args[0], c.Args[1:]...)
	if c.Builtin == engine.BuiltinFiles {
		cmd = exec.Command(os.Args[0], c.Args...)
		cmd.Env = append(os.Environ(), filesRole+"=1", "GORACE=atexit_sleep_ms=0") // the race detector waits a second at exit
	} else {
		cmd.Env = append(slices.Clone(c.Env), "PATH="+os.Getenv("PATH"))
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = c.Stdin, c.Stdout, c.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = time.Second
	return cmd
}

func (b *fakeBox) Start(ctx context.Context, c engine.Command) (engine.Process, error) {
	if c.Args[0] == noop {
		return noProcess{}, nil
	}
	cmd := command(c)
	if b.engine.waits.Load() {
		cmd.WaitDelay = 0
	}
	if c.Builtin == engine.BuiltinFiles && c.Args[0] == "unpack" && b.engine.old.Load() {
		cmd.Args[1] = "unheard-of"
	}
	if c.Builtin == engine.BuiltinFiles && b.engine.stalls.Load() {
		cmd.Path, cmd.Args = "/bin/sleep", []string{"sleep", "79"}
		b.engine.started.Add(1)
	}
	if errors.Is(cmd.Err, exec.ErrNotFound) {
		return nil, fmt.Errorf("%w: %q", engine.ErrNotFound, c.Args[0])
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("%w: %v", engine.ErrNotExecutable, err)
	}
	p := &fakeProcess{cmd: cmd, verdict: make(chan engine.Verdict, 2), start: time.Now()}
	p.stop = context.AfterFunc(ctx, func() {
		p.verdict <- engine.Canceled
		p.kill()
		b.engine.killed <- strings.Join(c.Args, " ")
	})
	if c.Timeout > 0 {
		p.timer = time.AfterFunc(c.Timeout, func() { p.verdict <- engine.TimedOut; p.kill() })
	}
	return p, nil
}

// noop is a command that costs nothing, to measure everything around it.
const noop = "noop"

type noProcess struct{}

func (noProcess) Wait() (engine.Result, error)   { return engine.Result{Verdict: engine.Exited}, nil }
func (noProcess) Signal(syscall.Signal) error    { return nil }
func (noProcess) Resize(engine.WindowSize) error { return nil }

type fakeProcess struct {
	cmd     *exec.Cmd
	verdict chan engine.Verdict
	start   time.Time
	stop    func() bool
	timer   *time.Timer
}

func (p *fakeProcess) kill() { syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) }

func (p *fakeProcess) Wait() (engine.Result, error) {
	p.cmd.Wait()
	p.stop()
	if p.timer != nil {
		p.timer.Stop()
	}
	r := resultFrom(p.cmd)
	r.Receipt.Wall = time.Since(p.start)
	select {
	case r.Verdict = <-p.verdict:
	default:
	}
	return r, nil
}

func resultFrom(cmd *exec.Cmd) engine.Result {
	status := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		return engine.Result{Verdict: engine.Signaled, ExitCode: -1, Signal: status.Signal()}
	}
	return engine.Result{Verdict: engine.Exited, ExitCode: status.ExitStatus()}
}

func (p *fakeProcess) Signal(sig syscall.Signal) error {
	return syscall.Kill(p.cmd.Process.Pid, sig)
}
func (p *fakeProcess) Resize(engine.WindowSize) error { return nil }

func (b *fakeBox) Launch(_ context.Context, m engine.Managed) (engine.ManagedProcess, error) {
	cmd := command(engine.Command{Args: m.Args, Env: m.Env})
	if errors.Is(cmd.Err, exec.ErrNotFound) {
		return nil, fmt.Errorf("%w: %q", engine.ErrNotFound, m.Args[0])
	}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	p := &fakeManaged{key: m.Key, cmd: cmd, done: make(chan struct{}), stdin: &fakeInput{w: stdin}, stdout: newFakeOutput(), stderr: newFakeOutput()}
	cmd.Stdout, cmd.Stderr = p.stdout, p.stderr
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		cmd.Wait()
		p.result = resultFrom(cmd)
		p.stdout.finish()
		p.stderr.finish()
		close(p.done)
	}()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.managed = append(b.managed, p)
	return p, nil
}

func (b *fakeBox) Managed() []engine.ManagedProcess {
	b.mu.Lock()
	defer b.mu.Unlock()
	var list []engine.ManagedProcess
	for _, m := range b.managed {
		list = append(list, m)
	}
	return list
}

type fakeManaged struct {
	key            string
	cmd            *exec.Cmd
	stdin          *fakeInput
	stdout, stderr *fakeOutput
	done           chan struct{}
	result         engine.Result
}

func (p *fakeManaged) Key() string  { return p.key }
func (p *fakeManaged) Hold() func() { return func() {} }

func (p *fakeManaged) Stdio() engine.Stdio {
	return engine.Stdio{Stdin: p.stdin, Stdout: p.stdout, Stderr: p.stderr}
}
func (p *fakeManaged) Control() engine.ProcessControl { return p }
func (p *fakeManaged) Done() <-chan struct{}          { return p.done }
func (p *fakeManaged) Result() engine.Result          { return p.result }
func (p *fakeManaged) Forget(context.Context) error   { return nil }
func (p *fakeManaged) PID() int                       { return p.cmd.Process.Pid }

func (p *fakeManaged) Signal(sig syscall.Signal) error {
	return syscall.Kill(-p.cmd.Process.Pid, sig)
}
func (p *fakeManaged) Resize(engine.WindowSize) error { return nil }
func (p *fakeManaged) Kill(context.Context) error     { return p.Signal(syscall.SIGKILL) }

func (p *fakeManaged) Terminate(_ context.Context, sig syscall.Signal) error { return p.Signal(sig) }

// fakeInput is a pipe.
type fakeInput struct {
	mu       sync.Mutex
	w        io.WriteCloser
	accepted int64
}

func (i *fakeInput) Write(_ context.Context, off int64, p []byte) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	p = p[min(max(i.accepted-off, 0), int64(len(p))):]
	n, err := i.w.Write(p)
	i.accepted += int64(n)
	return err
}

func (i *fakeInput) Accepted() int64 { i.mu.Lock(); defer i.mu.Unlock(); return i.accepted }

func (i *fakeInput) Close(context.Context) error { return i.w.Close() }

// fakeOutput keeps everything.
type fakeOutput struct {
	mu    sync.Mutex
	data  []byte
	ended bool
	more  chan struct{} // closed and replaced when something changes
}

func newFakeOutput() *fakeOutput { return &fakeOutput{more: make(chan struct{})} }

func (o *fakeOutput) Write(p []byte) (int, error) {
	o.change(func() { o.data = append(o.data, p...) })
	return len(p), nil
}

func (o *fakeOutput) finish() { o.change(func() { o.ended = true }) }

func (o *fakeOutput) change(fn func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	fn()
	close(o.more)
	o.more = make(chan struct{})
}

func (o *fakeOutput) Bounds() (oldest, end int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return 0, int64(len(o.data))
}

func (o *fakeOutput) ReadAt(ctx context.Context, p []byte, off int64) (int, int64, error) {
	for {
		o.mu.Lock()
		n, ended, more := 0, o.ended, o.more
		if off < int64(len(o.data)) {
			n = copy(p, o.data[off:])
		}
		o.mu.Unlock()
		switch {
		case n > 0:
			return n, off, nil
		case ended:
			return 0, off, io.EOF
		}
		select {
		case <-more:
		case <-ctx.Done():
			return 0, off, ctx.Err()
		}
	}
}

func (o *fakeOutput) Release(int64) {}

func (o *fakeOutput) Released() int64 { return 0 }
