package session

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

// fakeHost is a host with boxes that outlive whoever made them.
type fakeHost struct {
	mu    sync.Mutex
	boxes map[string]*fakeBox
	made  map[string]int // how often an id was used
	pids  int

	volumes   map[string]*fakeVolume
	limits    map[string][2]int64 // of directories
	noVolumes error               // why there are none
	noLimits  error
	asked     int // how often all volumes were listed
	// hook, if set, is called before each operation with its name and the box; it may
	// wait, and what it returns is the operation's error. After an operation that changes
	// something it is called with the past of the name: an error is that of an answer that
	// is lost.
	hook func(ctx context.Context, op, box string) error
}

func newFakeHost() *fakeHost {
	return &fakeHost{boxes: map[string]*fakeBox{}, made: map[string]int{}, volumes: map[string]*fakeVolume{}, limits: map[string][2]int64{}}
}

// client connects a new process to the host.
func (h *fakeHost) client() *fakeClient {
	c := &fakeClient{host: h}
	c.ctx, c.cut = context.WithCancel(context.Background())
	return c
}

func (h *fakeHost) setHook(hook func(ctx context.Context, op, box string) error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.hook = hook
}

func (h *fakeHost) ids() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Sorted(maps.Keys(h.boxes))
}

func (h *fakeHost) box(id string) *fakeBox {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.boxes[id]
}

// kill is the sudden end of a box's PID 1. What is left of the box stays until it is
// removed.
func (h *fakeHost) kill(id string) {
	if b := h.box(id); b != nil {
		b.die()
	}
}

type fakeBox struct {
	host   *fakeHost
	id     string
	dead   chan struct{}
	events chan engine.Event

	written atomic.Int64 // by its processes, to disks

	mu    sync.Mutex
	spec  engine.Spec
	procs map[string]*fakeProc
	execs map[*fakeExec]struct{}
	env   []string // of the last command
	cmd   engine.Command
}

func (b *fakeBox) die() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if isDone(b.dead) {
		return
	}
	close(b.dead)
	for _, p := range b.procs {
		p.endLocked(engine.Result{Verdict: engine.BoxLost, ExitCode: -1})
	}
	for e := range b.execs {
		e.endLocked(engine.Result{Verdict: engine.BoxLost, ExitCode: -1})
	}
}

// proc is the managed process key.
func (b *fakeBox) proc(key string) *fakeProc {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.procs[key]
}

type fakeProc struct {
	box  *fakeBox
	m    engine.Managed
	pid  int
	done chan struct{}
	// Guarded by box.mu.
	result  engine.Result
	ended   bool
	signals []syscall.Signal
	stdin   bool // closed
}

func (p *fakeProc) endLocked(r engine.Result) {
	if !p.ended {
		p.ended, p.result = true, r
		close(p.done)
	}
}

func (p *fakeProc) exit(code int) {
	p.box.mu.Lock()
	defer p.box.mu.Unlock()
	p.endLocked(engine.Result{Verdict: engine.Exited, ExitCode: code})
}

type fakeExec struct {
	done   chan struct{}
	ended  bool
	result engine.Result
}

func (e *fakeExec) endLocked(r engine.Result) {
	if !e.ended {
		e.ended, e.result = true, r
		close(e.done)
	}
}

// fakeClient is one process's connection to the host.
type fakeClient struct {
	host *fakeHost
	ctx  context.Context // ends when the process dies
	cut  context.CancelFunc
}

var _ engine.Service = (*fakeClient)(nil)

func (c *fakeClient) before(ctx context.Context, op, box string) error {
	if c.ctx.Err() != nil {
		return engine.ErrNoLauncher
	}
	c.host.mu.Lock()
	hook := c.host.hook
	c.host.mu.Unlock()
	if hook != nil {
		if err := hook(ctx, op, box); err != nil {
			return err
		}
	}
	if c.ctx.Err() != nil {
		return engine.ErrNoLauncher
	}
	return ctx.Err()
}

func (c *fakeClient) Create(ctx context.Context, spec engine.Spec) (engine.LiveBox, error) {
	if err := c.before(ctx, "create", spec.ID); err != nil {
		return nil, err
	}
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	h := c.host
	h.mu.Lock()
	if h.boxes[spec.ID] != nil || spec.ID == "" {
		h.mu.Unlock()
		return nil, fmt.Errorf("box %q exists", spec.ID)
	}
	if err := h.unmounted(spec); err != nil {
		h.mu.Unlock()
		return nil, err
	}
	h.made[spec.ID]++
	b := &fakeBox{host: h, id: spec.ID, spec: spec, dead: make(chan struct{}), events: make(chan engine.Event, 16),
		procs: map[string]*fakeProc{}, execs: map[*fakeExec]struct{}{}}
	h.boxes[spec.ID] = b
	h.mu.Unlock()
	if err := c.before(ctx, "created", spec.ID); err != nil { // the answer is lost
		if !errors.Is(err, engine.ErrNoLauncher) {
			h.remove(spec.ID)
		}
		return nil, err
	}
	return &fakeLive{b: b, c: c}, nil
}

func (h *fakeHost) remove(id string) {
	h.kill(id)
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.boxes, id)
}

func (c *fakeClient) Adopt(ctx context.Context, id string, _ engine.Spec) (engine.LiveBox, error) {
	if err := c.before(ctx, "adopt", id); err != nil {
		return nil, err
	}
	b := c.host.box(id)
	if b == nil || isDone(b.dead) {
		return nil, fmt.Errorf("adopting %q: %w", id, engine.ErrBoxLost)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for e := range b.execs {
		e.endLocked(engine.Result{Verdict: engine.Canceled, ExitCode: -1, Signal: syscall.SIGKILL})
	}
	return &fakeLive{b: b, c: c}, nil
}

func (c *fakeClient) Boxes(ctx context.Context) ([]string, error) {
	if err := c.before(ctx, "boxes", ""); err != nil {
		return nil, err
	}
	return c.host.ids(), nil
}

func (c *fakeClient) Discard(ctx context.Context, id string) error {
	if err := c.before(ctx, "discard", id); err != nil {
		return err
	}
	c.host.remove(id)
	return c.before(ctx, "discarded", id)
}

func (c *fakeClient) Health(context.Context) error { return nil }

// fakeLive is a box as one client has it.
type fakeLive struct {
	b *fakeBox
	c *fakeClient

	remove sync.Once
	err    error
}

func (l *fakeLive) ID() string            { return l.b.id }
func (l *fakeLive) Done() <-chan struct{} { return l.b.dead }
func (l *fakeLive) Spec() engine.Spec {
	l.b.mu.Lock()
	defer l.b.mu.Unlock()
	return l.b.spec.WithDefaults()
}
func (l *fakeLive) Events() <-chan engine.Event { return l.b.events }
func (l *fakeLive) Usage() (engine.Usage, error) {
	n := l.b.written.Load()
	return engine.Usage{Written: &n}, nil
}
func (l *fakeLive) Ports() ([]engine.Port, error) { return nil, nil }

func (l *fakeLive) ready(ctx context.Context, op string) error {
	if err := l.c.before(ctx, op, l.b.id); err != nil {
		return err
	}
	if isDone(l.b.dead) {
		return fmt.Errorf("%s: %w", op, engine.ErrBoxLost)
	}
	return nil
}

// Remove lets go of the box also if it fails, as the native engine does: it fails ever
// after then.
func (l *fakeLive) Remove(ctx context.Context) error {
	l.remove.Do(func() {
		if l.err = l.c.before(ctx, "remove", l.b.id); l.err == nil {
			l.c.host.remove(l.b.id)
			l.err = l.c.before(ctx, "removed", l.b.id)
		}
	})
	return l.err
}

func (l *fakeLive) Update(ctx context.Context, change engine.Change) error {
	if err := l.ready(ctx, "update"); err != nil {
		return err
	}
	if err := change.Validate(); err != nil {
		return err
	}
	if err := l.b.change(change); err != nil {
		return err
	}
	return l.c.before(ctx, "updated", l.b.id)
}

func (b *fakeBox) change(change engine.Change) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := slices.Clone(b.spec.Mounts)
	for _, target := range change.Detach {
		at := slices.IndexFunc(list, func(m mount) bool { return m.Target == target })
		if at < 0 {
			return fmt.Errorf("nothing is attached at %q", target)
		}
		list = slices.Delete(list, at, at+1)
	}
	for _, m := range change.Attach {
		if slices.ContainsFunc(list, func(o mount) bool { return o.Target == m.Target }) {
			return fmt.Errorf("%q is attached already", m.Target)
		}
		list = append(list, m)
	}
	b.spec.Mounts = list
	if change.Limits != nil {
		b.spec.Limits = b.spec.Limits.Apply(*change.Limits)
	}
	return nil
}

// Start knows the programs true, exit N, echo TEXT, env, wait, die (which takes the
// box with it) and missing.
func (l *fakeLive) Start(ctx context.Context, cmd engine.Command) (engine.Process, error) {
	if err := l.ready(ctx, "start"); err != nil {
		return nil, err
	}
	if err := cmd.Validate(); err != nil {
		return nil, err
	}
	if cmd.Args[0] == "missing" {
		return nil, engine.ErrNotFound
	}
	e := &fakeExec{done: make(chan struct{})}
	l.b.mu.Lock()
	l.b.env, l.b.cmd = cmd.Env, cmd
	l.b.execs[e] = struct{}{}
	l.b.mu.Unlock()
	return &fakeRun{l, e, cmd, ctx}, nil
}

type fakeRun struct {
	l   *fakeLive
	e   *fakeExec
	cmd engine.Command
	ctx context.Context
}

func (r *fakeRun) Signal(syscall.Signal) error    { return nil }
func (r *fakeRun) Resize(engine.WindowSize) error { return nil }

func (r *fakeRun) Wait() (engine.Result, error) {
	b := r.l.b
	exited := engine.Result{Verdict: engine.Exited}
	switch r.cmd.Args[0] {
	case "true":
		r.end(exited)
	case "exit":
		exited.ExitCode, _ = strconv.Atoi(r.cmd.Args[1])
		r.end(exited)
	case "echo":
		io.WriteString(r.cmd.Stdout, r.cmd.Args[1])
		r.end(exited)
	case "die":
		b.die()
	}
	var timeout <-chan time.Time
	if r.cmd.Timeout > 0 {
		timer := time.NewTimer(r.cmd.Timeout)
		defer timer.Stop()
		timeout = timer.C
	}
	select {
	case <-r.e.done:
	case <-r.ctx.Done():
		r.end(engine.Result{Verdict: engine.Canceled, ExitCode: -1, Signal: syscall.SIGKILL})
	case <-timeout:
		r.end(engine.Result{Verdict: engine.TimedOut, ExitCode: -1, Signal: syscall.SIGTERM})
	case <-r.l.c.ctx.Done():
		return engine.Result{}, engine.ErrNoLauncher
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.execs, r.e)
	return r.e.result, nil
}

func (r *fakeRun) end(res engine.Result) {
	r.l.b.mu.Lock()
	defer r.l.b.mu.Unlock()
	r.e.endLocked(res)
}

// Launch knows the programs serve, which ends at SIGTERM, stubborn, which does not,
// filter, which ends with its stdin, exit N, and missing.
func (l *fakeLive) Launch(ctx context.Context, m engine.Managed) (engine.ManagedProcess, error) {
	if err := l.ready(ctx, "launch"); err != nil {
		return nil, err
	}
	if err := m.Validate(); err != nil {
		return nil, err
	}
	if m.Args[0] == "missing" {
		return nil, engine.ErrNotFound
	}
	b := l.b
	b.host.mu.Lock()
	b.host.pids++
	pid := b.host.pids
	b.host.mu.Unlock()
	p := &fakeProc{box: b, m: m, pid: pid, done: make(chan struct{})}
	b.mu.Lock()
	if b.procs[m.Key] != nil {
		b.mu.Unlock()
		return nil, fmt.Errorf("key %q is used", m.Key)
	}
	b.procs[m.Key] = p
	if isDone(b.dead) { // died meanwhile
		p.endLocked(engine.Result{Verdict: engine.BoxLost, ExitCode: -1})
	}
	b.mu.Unlock()
	if err := l.c.before(ctx, "launched", b.id); err != nil { // the answer is lost
		return nil, err
	}
	if m.Args[0] == "exit" {
		code, _ := strconv.Atoi(m.Args[1])
		p.exit(code)
	}
	return &fakeManaged{p, l}, nil
}

func (l *fakeLive) Managed() []engine.ManagedProcess {
	l.b.mu.Lock()
	defer l.b.mu.Unlock()
	var list []engine.ManagedProcess
	for _, p := range l.b.procs {
		list = append(list, &fakeManaged{p, l})
	}
	return list
}

// fakeManaged is a managed process as one client has it.
type fakeManaged struct {
	p *fakeProc
	l *fakeLive
}

func (m *fakeManaged) Key() string                    { return m.p.m.Key }
func (m *fakeManaged) Control() engine.ProcessControl { return m }
func (m *fakeManaged) Done() <-chan struct{}          { return m.p.done }
func (m *fakeManaged) PID() int                       { return m.p.pid }
func (m *fakeManaged) Resize(engine.WindowSize) error { return nil }
func (m *fakeManaged) Signal(s syscall.Signal) error {
	return m.Terminate(context.Background(), s)
}

func (m *fakeManaged) Hold() func() { return func() {} }

func (m *fakeManaged) Stdio() engine.Stdio {
	io := engine.Stdio{Stdin: fakeStdin{m}, Stdout: fakeOutput{}}
	if m.p.m.TTY == nil {
		io.Stderr = fakeOutput{}
	}
	return io
}

func (m *fakeManaged) Result() engine.Result {
	m.p.box.mu.Lock()
	defer m.p.box.mu.Unlock()
	return m.p.result
}

func (m *fakeManaged) Terminate(ctx context.Context, s syscall.Signal) error {
	if err := m.l.ready(ctx, "signal"); err != nil {
		return err
	}
	m.p.box.mu.Lock()
	m.p.signals = append(m.p.signals, s)
	if s == syscall.SIGTERM && m.p.m.Args[0] == "serve" {
		m.p.endLocked(engine.Result{Verdict: engine.Signaled, ExitCode: -1, Signal: s})
	}
	m.p.box.mu.Unlock()
	return m.l.c.before(ctx, "signaled", m.p.box.id)
}

func (m *fakeManaged) Kill(ctx context.Context) error {
	if err := m.l.ready(ctx, "kill"); err != nil {
		return err
	}
	m.p.box.mu.Lock()
	defer m.p.box.mu.Unlock()
	m.p.endLocked(engine.Result{Verdict: engine.Signaled, ExitCode: -1, Signal: syscall.SIGKILL})
	return nil
}

func (m *fakeManaged) Forget(ctx context.Context) error {
	if err := m.l.ready(ctx, "forget"); err != nil {
		return err
	}
	if err := m.p.forget(); err != nil {
		return err
	}
	return m.l.c.before(ctx, "forgotten", m.p.box.id)
}

func (p *fakeProc) forget() error {
	p.box.mu.Lock()
	defer p.box.mu.Unlock()
	if !p.ended {
		return errors.New("it runs")
	}
	delete(p.box.procs, p.m.Key)
	return nil
}

type fakeStdin struct{ m *fakeManaged }

func (s fakeStdin) Write(context.Context, int64, []byte) error { return nil }
func (s fakeStdin) Accepted() int64                            { return 0 }
func (s fakeStdin) Close(ctx context.Context) error {
	if err := s.m.l.ready(ctx, "close"); err != nil {
		return err
	}
	p := s.m.p
	p.box.mu.Lock()
	defer p.box.mu.Unlock()
	p.stdin = true
	if p.m.Args[0] == "filter" {
		p.endLocked(engine.Result{Verdict: engine.Exited})
	}
	return nil
}

type fakeOutput struct{}

func (fakeOutput) Bounds() (int64, int64) { return 0, 0 }
func (fakeOutput) Release(int64)          {}
func (fakeOutput) Released() int64        { return 0 }
func (fakeOutput) ReadAt(context.Context, []byte, int64) (int, int64, error) {
	return 0, 0, io.EOF
}
