package langbot

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/boxd/boxd/engine"
)

// fakeHost is an engine whose boxes outlive whoever uses it, and a place for directories.
type fakeHost struct {
	dir string // volumes, and what stands for the host's directories

	mu      sync.Mutex
	boxes   map[string]*fakeBox
	made    int
	pids    int
	sick    error // what Health says
	volumes map[string]engine.Volume
	limited []string // directories of the host, with bytes and inodes
	// hook, if set, is called before each operation; it may wait, and what it returns is
	// the operation's error.
	hook func(ctx context.Context, op, box string) error
}

func newFakeHost(dir string) *fakeHost {
	return &fakeHost{dir: dir, boxes: map[string]*fakeBox{}, volumes: map[string]engine.Volume{}}
}

func (h *fakeHost) setHook(hook func(ctx context.Context, op, box string) error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.hook = hook
}

func (h *fakeHost) before(ctx context.Context, op, box string) error {
	h.mu.Lock()
	hook := h.hook
	h.mu.Unlock()
	if hook != nil {
		if err := hook(ctx, op, box); err != nil {
			return err
		}
	}
	return ctx.Err()
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

// only is the one box that there is.
func (h *fakeHost) only() *fakeBox {
	ids := h.ids()
	if len(ids) != 1 {
		panic(fmt.Sprintf("boxes %q, want one", ids))
	}
	return h.box(ids[0])
}

var (
	_ engine.Service = (*fakeHost)(nil)
	_ engine.Storage = (*fakeHost)(nil)
)

func (h *fakeHost) Create(ctx context.Context, spec engine.Spec) (engine.LiveBox, error) {
	if err := h.before(ctx, "create", spec.ID); err != nil {
		return nil, err
	}
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.boxes[spec.ID] != nil {
		return nil, fmt.Errorf("box %q exists", spec.ID)
	}
	h.made++
	b := &fakeBox{host: h, id: spec.ID, spec: spec, dead: make(chan struct{}), events: make(chan engine.Event),
		procs: map[string]*fakeProc{}, runs: map[*fakeRun]struct{}{}}
	h.boxes[spec.ID] = b
	return b, nil
}

func (h *fakeHost) Adopt(ctx context.Context, id string, _ engine.Spec) (engine.LiveBox, error) {
	b := h.box(id)
	if b == nil || isDone(b.dead) {
		return nil, fmt.Errorf("adopting %q: %w", id, engine.ErrBoxLost)
	}
	return b, nil
}

func (h *fakeHost) Boxes(context.Context) ([]string, error) { return h.ids(), nil }

func (h *fakeHost) Discard(ctx context.Context, id string) error {
	if b := h.box(id); b != nil {
		return b.Remove(ctx)
	}
	return nil
}

func (h *fakeHost) Health(context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.sick
}

func (h *fakeHost) MakeVolume(_ context.Context, v engine.Volume) error {
	if err := v.Validate(); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.volumes[v.Name] = v
	return os.MkdirAll(filepath.Join(h.dir, "volumes", v.Name), 0o700)
}

func (h *fakeHost) RemoveVolume(_ context.Context, name string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.volumes, name)
	return os.RemoveAll(filepath.Join(h.dir, "volumes", name))
}

func (h *fakeHost) Volumes(context.Context) (list []engine.VolumeState, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(h.volumes)) {
		list = append(list, engine.VolumeState{Volume: h.volumes[name]})
	}
	return list, nil
}

// OpenDirectory knows the host's directories by their own names.
func (h *fakeHost) OpenDirectory(ctx context.Context, d engine.Directory) (*os.File, error) {
	if err := d.Validate(); err != nil {
		return nil, err
	}
	if d.Mappable {
		if err := h.before(ctx, "map", ""); err != nil {
			return nil, err
		}
	}
	name := d.Path
	if d.Volume != "" {
		name = filepath.Join(h.dir, "volumes", d.Volume, d.Path)
	}
	if d.Make {
		if err := os.MkdirAll(name, 0o700); err != nil {
			return nil, err
		}
	}
	return os.OpenFile(name, os.O_RDONLY|syscall.O_DIRECTORY, 0)
}

func (h *fakeHost) LimitDirectory(_ context.Context, d engine.Directory, bytes, inodes int64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.limited = append(h.limited, fmt.Sprint(d.Path, " ", bytes, " ", inodes))
	return engine.ErrUnenforceable
}

// fakeBox is a live box.
type fakeBox struct {
	host   *fakeHost
	id     string
	dead   chan struct{}
	events chan engine.Event

	mu    sync.Mutex
	spec  engine.Spec
	procs map[string]*fakeProc
	runs  map[*fakeRun]struct{}
	last  engine.Command
}

func (b *fakeBox) ID() string            { return b.id }
func (b *fakeBox) Done() <-chan struct{} { return b.dead }
func (b *fakeBox) Spec() engine.Spec {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.spec.WithDefaults()
}
func (b *fakeBox) Events() <-chan engine.Event   { return b.events }
func (b *fakeBox) Usage() (engine.Usage, error)  { return engine.Usage{}, nil }
func (b *fakeBox) Ports() ([]engine.Port, error) { return nil, nil }

// die is the sudden end of PID 1.
func (b *fakeBox) die() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if isDone(b.dead) {
		return
	}
	close(b.dead)
	lost := engine.Result{Verdict: engine.BoxLost, ExitCode: -1}
	for _, p := range b.procs {
		p.endLocked(lost)
	}
	for r := range b.runs {
		r.endLocked(lost)
	}
}

func (b *fakeBox) Remove(ctx context.Context) error {
	if err := b.host.before(ctx, "remove", b.id); err != nil {
		return err
	}
	b.die()
	b.host.mu.Lock()
	defer b.host.mu.Unlock()
	delete(b.host.boxes, b.id)
	return nil
}

func (b *fakeBox) Update(ctx context.Context, c engine.Change) error {
	if err := b.host.before(ctx, "update", b.id); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, target := range c.Detach {
		for i, m := range b.spec.Mounts {
			if m.Target == target {
				b.spec.Mounts = slices.Delete(slices.Clone(b.spec.Mounts), i, i+1)
				break
			}
		}
	}
	b.spec.Mounts = append(slices.Clone(b.spec.Mounts), c.Attach...)
	return nil
}

// targets are the mounts of the box.
func (b *fakeBox) targets() (list []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range b.spec.Mounts {
		list = append(list, m.Target)
	}
	return list
}

// fakeRun is a command that runs.
type fakeRun struct {
	b    *fakeBox
	ctx  context.Context
	cmd  engine.Command
	done chan struct{}
	res  engine.Result
}

func (r *fakeRun) endLocked(res engine.Result) {
	if !isDone(r.done) {
		r.res = res
		close(r.done)
	}
}

func (r *fakeRun) end(res engine.Result) {
	r.b.mu.Lock()
	defer r.b.mu.Unlock()
	r.endLocked(res)
}

// Start knows, behind sh -lc: true, exit N, kill N (by a signal), echo TEXT, err TEXT,
// fill N (bytes of output), hex BYTES, oom, env, wait, and die, which takes the box with it. A directory
// "/file/…" cannot be made.
func (b *fakeBox) Start(ctx context.Context, cmd engine.Command) (engine.Process, error) {
	if err := b.host.before(ctx, "start", b.id); err != nil {
		return nil, err
	}
	if isDone(b.dead) {
		return nil, engine.ErrBoxLost
	}
	if err := cmd.Validate(); err != nil {
		return nil, err
	}
	if strings.HasPrefix(cmd.Dir, "/file/") {
		return nil, fmt.Errorf("making %q: %w", cmd.Dir, syscall.ENOTDIR)
	}
	r := &fakeRun{b: b, ctx: ctx, cmd: cmd, done: make(chan struct{})}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.runs[r], b.last = struct{}{}, cmd
	if isDone(b.dead) { // died meanwhile
		r.endLocked(engine.Result{Verdict: engine.BoxLost, ExitCode: -1})
	}
	return r, nil
}

func (r *fakeRun) Signal(syscall.Signal) error    { return nil }
func (r *fakeRun) Resize(engine.WindowSize) error { return nil }

func (r *fakeRun) Wait() (engine.Result, error) {
	verb, arg, _ := strings.Cut(r.cmd.Args[2], " ")
	n, _ := strconv.Atoi(arg)
	exited := engine.Result{Verdict: engine.Exited}
	switch verb {
	case "true":
		r.end(exited)
	case "exit":
		r.end(engine.Result{Verdict: engine.Exited, ExitCode: n})
	case "kill":
		r.end(engine.Result{Verdict: engine.Signaled, ExitCode: -1, Signal: syscall.Signal(n)})
	case "oom":
		r.end(engine.Result{Verdict: engine.OOM, ExitCode: -1, Signal: syscall.SIGKILL, Limit: "64 MiB"})
	case "echo":
		io.WriteString(r.cmd.Stdout, arg)
		r.end(exited)
	case "err":
		io.WriteString(r.cmd.Stderr, arg)
		r.end(engine.Result{Verdict: engine.Exited, ExitCode: 1})
	case "fill":
		for range n / 1000 {
			io.WriteString(r.cmd.Stdout, strings.Repeat("x", 1000))
		}
		r.end(exited)
	case "hex":
		raw, _ := hex.DecodeString(arg)
		r.cmd.Stdout.Write(raw)
		r.end(exited)
	case "env":
		io.WriteString(r.cmd.Stdout, strings.Join(r.cmd.Env, ","))
		r.end(exited)
	case "die":
		r.b.die()
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
		r.end(engine.Result{Verdict: engine.Canceled, ExitCode: -1, Signal: syscall.SIGKILL})
	case <-timeout:
		r.end(engine.Result{Verdict: engine.TimedOut, ExitCode: -1, Signal: syscall.SIGTERM})
	}
	r.b.mu.Lock()
	defer r.b.mu.Unlock()
	delete(r.b.runs, r)
	return r.res, nil
}

// fakeProc is a managed process.
type fakeProc struct {
	b      *fakeBox
	m      engine.Managed
	pid    int
	done   chan struct{}
	stderr fakeOutput
	res    engine.Result
}

func (p *fakeProc) endLocked(res engine.Result) {
	if !isDone(p.done) {
		p.res = res
		close(p.done)
	}
}

func (p *fakeProc) end(res engine.Result) {
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	p.endLocked(res)
}

// Launch knows, behind the shell: serve, which ends at SIGTERM, stubborn, which does not,
// exit N, and say TEXT, which says it on stderr and serves.
func (b *fakeBox) Launch(ctx context.Context, m engine.Managed) (engine.ManagedProcess, error) {
	if err := b.host.before(ctx, "launch", b.id); err != nil {
		return nil, err
	}
	if isDone(b.dead) {
		return nil, engine.ErrBoxLost
	}
	if err := m.Validate(); err != nil {
		return nil, err
	}
	b.host.mu.Lock()
	b.host.pids++
	p := &fakeProc{b: b, m: m, pid: b.host.pids, done: make(chan struct{})}
	b.host.mu.Unlock()
	b.mu.Lock()
	b.procs[m.Key] = p
	if isDone(b.dead) { // died meanwhile
		p.endLocked(engine.Result{Verdict: engine.BoxLost, ExitCode: -1})
	}
	b.mu.Unlock()
	switch m.Args[3] {
	case "exit":
		code, _ := strconv.Atoi(m.Args[4])
		p.end(engine.Result{Verdict: engine.Exited, ExitCode: code})
	case "say":
		p.stderr.write([]byte(m.Args[4]))
	}
	return p, nil
}

func (b *fakeBox) Managed() (list []engine.ManagedProcess) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range b.procs {
		list = append(list, p)
	}
	return list
}

func (p *fakeProc) Key() string                    { return p.m.Key }
func (p *fakeProc) Control() engine.ProcessControl { return p }
func (p *fakeProc) Done() <-chan struct{}          { return p.done }
func (p *fakeProc) PID() int                       { return p.pid }
func (p *fakeProc) Resize(engine.WindowSize) error { return nil }
func (p *fakeProc) Signal(s syscall.Signal) error  { return p.Terminate(context.Background(), s) }
func (p *fakeProc) Hold() func() { return func() {} }

func (p *fakeProc) Stdio() engine.Stdio {
	return engine.Stdio{Stdin: fakeStdin{}, Stdout: &fakeOutput{}, Stderr: &p.stderr}
}

func (p *fakeProc) Result() engine.Result {
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	return p.res
}

func (p *fakeProc) Terminate(_ context.Context, s syscall.Signal) error {
	if p.m.Args[3] != "stubborn" {
		p.end(engine.Result{Verdict: engine.Signaled, ExitCode: -1, Signal: s})
	}
	return nil
}

func (p *fakeProc) Kill(context.Context) error {
	p.end(engine.Result{Verdict: engine.Signaled, ExitCode: -1, Signal: syscall.SIGKILL})
	return nil
}

func (p *fakeProc) Forget(context.Context) error {
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	if !isDone(p.done) {
		return errors.New("it runs")
	}
	delete(p.b.procs, p.m.Key)
	p.stderr.forget()
	return nil
}

type fakeStdin struct{}

func (fakeStdin) Write(context.Context, int64, []byte) error { return nil }
func (fakeStdin) Accepted() int64                            { return 0 }
func (fakeStdin) Close(context.Context) error                { return nil }

// fakeOutput keeps the last keep bytes, or all if that is 0.
type fakeOutput struct {
	keep int64

	mu    sync.Mutex
	start int64
	b     []byte
}

func (o *fakeOutput) write(p []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.b = append(o.b, p...)
	if over := int64(len(o.b)) - o.keep; o.keep > 0 && over > 0 {
		o.b, o.start = o.b[over:], o.start+over
	}
}

// forget gives up all that is kept.
func (o *fakeOutput) forget() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.start, o.b = o.start+int64(len(o.b)), nil
}

func (o *fakeOutput) Bounds() (int64, int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.start, o.start + int64(len(o.b))
}

// ReadAt hands out 1,000 bytes at most.
func (o *fakeOutput) ReadAt(_ context.Context, p []byte, off int64) (int, int64, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	off = max(off, o.start)
	if off >= o.start+int64(len(o.b)) {
		return 0, off, io.EOF
	}
	return copy(p[:min(len(p), 1000)], o.b[off-o.start:]), off, nil
}

func (o *fakeOutput) Release(int64)   {}
func (o *fakeOutput) Released() int64 { return 0 }

func isDone(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
