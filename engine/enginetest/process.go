package enginetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/boxd/boxd/engine"
)

// Process is the host's view of a managed process.
type Process struct {
	// Signaled is the last signal that it was sent.
	Signaled atomic.Int32

	box    *Box
	m      engine.Managed
	pid    int
	stderr Output
	done   chan struct{}
	result engine.Result // guarded by Box.mu
	used   time.Duration // guarded by Box.mu
}

// Use sets the processor time that the process has used. The result of a process that ends with
// its box does not have it.
func (p *Process) Use(cpu time.Duration) {
	p.box.mu.Lock()
	defer p.box.mu.Unlock()
	p.used = cpu
}

// Managed returns the description with which the process was started.
func (p *Process) Managed() engine.Managed { return p.m }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// PID returns its process id.
func (p *Process) PID() int { return p.pid }

// Exit ends the process.
func (p *Process) Exit(code int) { p.end(engine.Result{Verdict: engine.Exited, ExitCode: code}) }

// Result returns the result of a process that has ended.
func (p *Process) Result() engine.Result {
	p.box.mu.Lock()
	defer p.box.mu.Unlock()
	return p.result
}

func (p *Process) end(result engine.Result) {
	p.box.mu.Lock()
	defer p.box.mu.Unlock()
	p.endLocked(result)
}

func (p *Process) endLocked(result engine.Result) {
	if !isClosed(p.done) {
		p.result = result
		if cpu := p.used; result.Verdict != engine.BoxLost {
			p.result.Receipt.User = &cpu
		}
		close(p.done)
	}
}

// program returns the program and its arguments, without the shell that executes it.
func (p *Process) program() []string {
	if p.m.Args[0] == "sh" && len(p.m.Args) > 3 {
		return p.m.Args[3:]
	}
	return p.m.Args
}

// Signal sends a signal. It ends some programs, see Launch.
func (p *Process) Signal(s syscall.Signal) {
	p.Signaled.Store(int32(s))
	if name := p.program()[0]; s == syscall.SIGTERM && (name == "serve" || name == "say") {
		p.end(engine.Result{Verdict: engine.Signaled, ExitCode: -1, Signal: s})
	}
}

// Process returns a managed process of the box, or nil.
func (b *Box) Process(key string) *Process {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.processes[key]
}

// Processes lists the managed processes that have not been forgotten.
func (b *Box) Processes() []*Process {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Collect(maps.Values(b.processes))
}

// Drop removes a managed process without a trace.
func (b *Box) Drop(key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.processes, key)
}

// Plant adds a managed process that no client has launched.
func (b *Box) Plant(m engine.Managed) (*Process, error) {
	b.host.mu.Lock()
	b.host.pids++
	p := &Process{box: b, m: m, pid: b.host.pids, done: make(chan struct{})}
	b.host.mu.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.processes[m.Key] != nil {
		return nil, fmt.Errorf("key %q is used", m.Key)
	}
	b.processes[m.Key] = p
	if isClosed(b.dead) {
		p.endLocked(lost)
	}
	return p, nil
}

// Launch knows the programs serve, which SIGTERM ends; say TEXT, which writes TEXT to stderr
// and then serves; stubborn, which no signal ends; filter, which ends with its stdin; exit N;
// and missing. Each is alone or the first argument of a script of sh.
func (l *liveBox) Launch(ctx context.Context, m engine.Managed) (engine.ManagedProcess, error) {
	if err := l.passStart(ctx, "launch"); err != nil {
		return nil, err
	}
	if err := m.Validate(); err != nil {
		return nil, err
	}
	if m.Args[0] == "missing" {
		return nil, engine.ErrNotFound
	}
	p, err := l.b.Plant(m)
	if err != nil {
		return nil, err
	}
	if err := l.c.pass(ctx, "launched", l.b.id); err != nil {
		return nil, err
	}
	switch args := p.program(); args[0] {
	case "exit":
		code, _ := strconv.Atoi(args[1])
		p.Exit(code)
	case "say":
		io.WriteString(&p.stderr, args[1])
	}
	return &managed{p, l}, nil
}

func (l *liveBox) Managed() []engine.ManagedProcess {
	var list []engine.ManagedProcess
	for _, p := range l.b.Processes() {
		list = append(list, &managed{p, l})
	}
	return list
}

// managed is a client's view of a managed process.
type managed struct {
	*Process
	l *liveBox
}

func (m *managed) Key() string                    { return m.m.Key }
func (m *managed) Control() engine.ProcessControl { return control{m} }

func (m *managed) Hold() func() { return func() {} }

func (m *managed) Stdio() engine.Stdio {
	streams := engine.Stdio{Stdin: input{m}, Stdout: &Output{}}
	if m.m.TTY == nil {
		streams.Stderr = &m.stderr
	}
	return streams
}

func (m *managed) Forget(ctx context.Context) error {
	if err := m.l.pass(ctx, "forget"); err != nil {
		return err
	}
	if !isClosed(m.done) {
		return errors.New("it runs")
	}
	m.box.Drop(m.m.Key)
	m.stderr.forget()
	return m.l.c.pass(ctx, "forgotten", m.box.id)
}

type control struct{ *managed }

func (c control) Resize(engine.WindowSize) error { return nil }
func (c control) Signal(s syscall.Signal) error  { return c.Terminate(context.Background(), s) }

func (c control) Terminate(ctx context.Context, s syscall.Signal) error {
	if err := c.l.pass(ctx, "signal"); err != nil {
		return err
	}
	c.Process.Signal(s)
	return c.l.c.pass(ctx, "signaled", c.box.id)
}

func (c control) Kill(ctx context.Context) error {
	if err := c.l.pass(ctx, "kill"); err != nil {
		return err
	}
	c.end(engine.Result{Verdict: engine.Signaled, ExitCode: -1, Signal: syscall.SIGKILL})
	return nil
}

type input struct{ m *managed }

func (i input) Write(context.Context, int64, []byte) error { return nil }
func (i input) Accepted() int64                            { return 0 }
func (i input) Close(ctx context.Context) error {
	if err := i.m.l.pass(ctx, "close"); err != nil {
		return err
	}
	if i.m.program()[0] == "filter" {
		i.m.Exit(0)
	}
	return nil
}

// Output is an output stream that has ended. It keeps the last Keep bytes that were written
// to it, or all if Keep is 0.
type Output struct {
	Keep int64

	mu    sync.Mutex
	start int64
	kept  []byte
}

var _ engine.Output = (*Output)(nil)

func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.kept = append(o.kept, p...)
	if over := int64(len(o.kept)) - o.Keep; o.Keep > 0 && over > 0 {
		o.kept, o.start = o.kept[over:], o.start+over
	}
	return len(p), nil
}

// forget drops the kept bytes.
func (o *Output) forget() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.start, o.kept = o.start+int64(len(o.kept)), nil
}

// Bounds returns the offsets of the oldest byte kept and of the end.
func (o *Output) Bounds() (oldest, end int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.start, o.start + int64(len(o.kept))
}

// ReadAt returns at most 1,000 bytes.
func (o *Output) ReadAt(_ context.Context, p []byte, off int64) (n int, at int64, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	off = max(off, o.start)
	if off >= o.start+int64(len(o.kept)) {
		return 0, off, io.EOF
	}
	return copy(p[:min(len(p), 1000)], o.kept[off-o.start:]), off, nil
}

// Release does nothing.
func (o *Output) Release(int64) {}

// Released returns 0.
func (o *Output) Released() int64 { return 0 }
