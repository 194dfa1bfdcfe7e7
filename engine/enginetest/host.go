// Package enginetest is an engine for tests of programs that use one: boxes, processes and
// volumes are values in memory, and nothing runs. A test can watch, delay and fail each
// operation, end boxes and processes, and cut the connection between a client and the host.
//
// Tests of the effect of a box on commands need engine/native instead.
package enginetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
)

// Host is a machine with boxes, which outlive the clients that make them. It is safe for
// concurrent use.
type Host struct {
	dir string

	mu        sync.Mutex
	hook      Hook
	health    error
	boxes     map[string]*Box
	made      map[string]int
	pids      int
	volumes   map[string]*engine.VolumeState
	listed    int
	noVolumes error
	limits    map[string]Limit
	limitings []string
	noLimits  error
	files     func(spec engine.Spec, path string) (string, bool)
	engines   []engine.EngineState
}

// Hook is called before each operation with its name and its box, volume or directory. It
// may wait, and the operation fails with its error. After an operation that changes something
// it is called again with the past tense of the name ("create", "created"). An error then
// represents a lost answer.
type Hook func(ctx context.Context, op, object string) error

// NewHost returns a host without boxes. The volumes are directories below dir; without dir
// they cannot be opened.
func NewHost(dir string) *Host {
	return &Host{dir: dir, engines: []engine.EngineState{{Engine: spec.EngineNative, Isolation: spec.IsolationNamespaces, Runtime: "fake"}}, boxes: map[string]*Box{}, made: map[string]int{}, volumes: map[string]*engine.VolumeState{}, limits: map[string]Limit{}}
}

// Connect returns a new client of the host.
func (h *Host) Connect() *Client {
	c := &Client{host: h}
	c.ctx, c.cut = context.WithCancel(context.Background())
	return c
}

// SetHook replaces the hook; nil removes it.
func (h *Host) SetHook(hook Hook) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.hook = hook
}

// SetFiles sets the content of the files that boxes can read, by their spec; false: no such file.
func (h *Host) SetFiles(content func(spec engine.Spec, path string) (string, bool)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.files = content
}

// SetHealth sets the answer of [Client.Health].
func (h *Host) SetHealth(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.health = err
}

// SetEngine adds an engine with an isolation to those of the host, or changes why boxes cannot be built
// with it; an empty reason means that they can. A new host has the native engine only.
func (h *Host) SetEngine(name, isolation, reason string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	at := slices.IndexFunc(h.engines, func(s engine.EngineState) bool { return s.Engine == name && s.Isolation == isolation })
	if at < 0 {
		at = len(h.engines)
		h.engines = append(h.engines, engine.EngineState{Engine: name, Isolation: isolation, Runtime: "fake"})
	}
	h.engines[at].Reason = reason
}

// IDs lists the boxes that exist, sorted.
func (h *Host) IDs() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Sorted(maps.Keys(h.boxes))
}

// Box returns a box, or nil.
func (h *Host) Box(id string) *Box {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.boxes[id]
}

// Only returns the only box of the host.
func (h *Host) Only() *Box {
	ids := h.IDs()
	if len(ids) != 1 {
		panic(fmt.Sprintf("boxes %q, want one", ids))
	}
	return h.Box(ids[0])
}

// Made returns how often each id was used for a box.
func (h *Host) Made() map[string]int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return maps.Clone(h.made)
}

// Kill ends a box's PID 1. The box stays, dead, until it is removed.
func (h *Host) Kill(id string) {
	if b := h.Box(id); b != nil {
		b.Die()
	}
}

// Remove removes a box without asking the hook, as a restart of the machine does.
func (h *Host) Remove(id string) {
	h.Kill(id)
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.boxes, id)
}

// Client is one process that uses a host.
type Client struct {
	host *Host
	ctx  context.Context // ends when the process dies
	cut  context.CancelFunc
}

var (
	_ engine.Service   = (*Client)(nil)
	_ engine.Storage   = (*Client)(nil)
	_ engine.Networked = (*liveBox)(nil)
	_ engine.Choosing  = (*Client)(nil)
)

// Cut kills the client: all its operations fail from now on.
func (c *Client) Cut() { c.cut() }

// Gone is closed once the client is cut.
func (c *Client) Gone() <-chan struct{} { return c.ctx.Done() }

// pass asks the hook, and fails if the client is cut or ctx has ended.
func (c *Client) pass(ctx context.Context, op, object string) error {
	if c.ctx.Err() != nil {
		return engine.ErrNoLauncher
	}
	c.host.mu.Lock()
	hook := c.host.hook
	c.host.mu.Unlock()
	if hook != nil {
		if err := hook(ctx, op, object); err != nil {
			return err
		}
	}
	if c.ctx.Err() != nil {
		return engine.ErrNoLauncher
	}
	return ctx.Err()
}

// Engines lists the engines of the host, see [Host.SetEngine].
func (c *Client) Engines(ctx context.Context, name, isolation string) ([]engine.EngineState, error) {
	if err := c.pass(ctx, "engines", name); err != nil {
		return nil, err
	}
	c.host.mu.Lock()
	defer c.host.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(c.host.engines), func(s engine.EngineState) bool {
		return name != "" && name != s.Engine || isolation != "" && isolation != s.Isolation
	}), nil
}

// checkEngine returns engine.ErrNoEngine if the host cannot build boxes as b says.
func (h *Host) checkEngine(b engine.Spec) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	reason := "not known here"
	for _, s := range h.engines {
		if s.Engine == b.Engine && s.Isolation == b.Isolation {
			reason = s.Reason
		}
	}
	if reason == "" {
		return nil
	}
	return fmt.Errorf("%s with isolation %s: %s: %w", b.Engine, b.Isolation, reason, engine.ErrNoEngine)
}

// Create makes a box.
func (c *Client) Create(ctx context.Context, spec engine.Spec) (engine.LiveBox, error) {
	if err := c.pass(ctx, "create", spec.ID); err != nil {
		return nil, err
	}
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	if err := c.host.checkEngine(spec.WithDefaults()); err != nil {
		return nil, err
	}
	b, err := c.host.create(spec)
	if err != nil {
		return nil, err
	}
	if err := c.pass(ctx, "created", spec.ID); err != nil {
		if !errors.Is(err, engine.ErrNoLauncher) {
			c.host.Remove(spec.ID)
		}
		return nil, err
	}
	return &liveBox{b: b, c: c}, nil
}

func (h *Host) create(spec engine.Spec) (*Box, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.boxes[spec.ID] != nil || spec.ID == "" {
		return nil, fmt.Errorf("box %q exists", spec.ID)
	}
	for _, m := range spec.Mounts {
		if m.Volume != "" && h.volumes[m.Volume] == nil {
			return nil, fmt.Errorf("volume %q does not exist", m.Volume)
		}
	}
	b := &Box{host: h, id: spec.ID, spec: spec, dead: make(chan struct{}), events: make(chan engine.Event, 16),
		processes: map[string]*Process{}, commands: map[*command]struct{}{}, listeners: map[netip.AddrPort]net.Listener{}}
	h.made[spec.ID]++
	h.boxes[spec.ID] = b
	return b, nil
}

// Adopt takes over a box and kills the commands that run in it.
func (c *Client) Adopt(ctx context.Context, id string, _ engine.Spec) (engine.LiveBox, error) {
	if err := c.pass(ctx, "adopt", id); err != nil {
		return nil, err
	}
	b := c.host.Box(id)
	if b == nil || isClosed(b.dead) {
		return nil, fmt.Errorf("adopting %q: %w", id, engine.ErrBoxLost)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for run := range b.commands {
		run.endLocked(canceled)
	}
	return &liveBox{b: b, c: c}, nil
}

// Boxes lists the boxes that exist.
func (c *Client) Boxes(ctx context.Context) ([]string, error) {
	if err := c.pass(ctx, "boxes", ""); err != nil {
		return nil, err
	}
	return c.host.IDs(), nil
}

// Discard removes a box.
func (c *Client) Discard(ctx context.Context, id string) error {
	if err := c.pass(ctx, "discard", id); err != nil {
		return err
	}
	c.host.Remove(id)
	return c.pass(ctx, "discarded", id)
}

// Health returns the error of [Host.SetHealth].
func (c *Client) Health(context.Context) error {
	c.host.mu.Lock()
	defer c.host.mu.Unlock()
	return c.host.health
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
