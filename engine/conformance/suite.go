// Package conformance is what an engine promises, as a test suite that every engine passes:
// creating boxes, commands and their stdio, verdicts, limits, receipts, mounts, managed
// processes, networks, volumes, and what survives the death of clients and launchers.
//
// An engine that holds a promise in another way, or not at all, has a row in the table of
// [engine.Differences]. The suite consults that table and nothing else, and fails if a row is
// not true.
//
// The cases run python3 and the usual tools in boxes of the image "host".
package conformance

import (
	"context"
	"errors"
	"io"
	"slices"
	"syscall"
	"testing"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/boxtest"
	"github.com/boxd/boxd/internal/testutil"
)

// Options say what is tested.
type Options struct {
	// Engine and Isolation are those of the specs of all boxes.
	Engine, Isolation string
	// Open starts a service without boxes. It ends with t, which fails if anything is left.
	Open func(t testing.TB) Host
	// Thorough also runs the cases that take seconds each. Without it only testutil.Full does.
	Thorough bool
	// Only names the cases that run; empty: all of them.
	Only []string
	// NoPrograms is empty if the engine executes the programs of a box, and otherwise why it
	// does not: then only the cases that need none run.
	NoPrograms string
}

// Host is a machine with one service, as the suite sees it from outside.
type Host interface {
	// Connect connects to the service, which has one client at a time.
	Connect(ctx context.Context) (Client, error)
	// KillLauncher kills the process that builds boxes. Another one takes its place.
	KillLauncher(t testing.TB)
	// Restart ends the service in an orderly way, while no client is connected, and starts it
	// again. The boxes stay.
	Restart(t testing.TB)
	// Init returns the process IDs on the host of a box's PID 1: one, or none if it has ended.
	Init(t testing.TB, box string) []int
	// Commands returns the process IDs on the host of whatever else runs in the box.
	Commands(t testing.TB, box string) []int
}

// Client is a connection to a service. That of an engine with programs is also an engine.Layers and an
// engine.Choosing.
type Client interface {
	engine.Service
	engine.Storage
	io.Closer
}

// Run runs the suite.
func Run(t *testing.T, o Options) {
	e := &suite{Options: o}
	e.host = e.open(t)
	e.shared = true
	differences := map[string]engine.Difference{} // by case
	for _, d := range engine.DifferencesOf(o.Engine, o.Isolation) {
		for _, name := range d.Cases {
			differences[name] = d
		}
	}
	for _, name := range o.Only {
		if !slices.ContainsFunc(cases, func(c testCase) bool { return c.name == name }) {
			t.Errorf("there is no case %q", name)
		}
	}
	for _, c := range cases {
		if len(o.Only) > 0 && !slices.Contains(o.Only, c.name) {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			e.skip(t, c)
			if c.waits {
				t.Parallel()
			}
			d, differs := differences[c.name]
			if !differs {
				c.run(e, t)
			} else if !fails(t, func(t testing.TB) { c.run(e, t) }) {
				t.Errorf("the table of differences says of %q that %s, but this passes: take it out of the row", d.Capability, d.Instead)
			}
		})
	}
}

// suite is a run of the suite. Its own host is shared by all cases that disturb no other.
type suite struct {
	Options
	*host
}

func (e *suite) skip(t testing.TB, c testCase) {
	switch {
	case e.NoPrograms != "" && !c.bare:
		t.Skip(e.NoPrograms)
	case c.slow && !e.Thorough && !testutil.Full():
		t.Skip("takes seconds: only the thorough form of the suite has it")
	case c.long:
		testutil.Long(t)
	}
}

// host is a Host with its client.
type host struct {
	Host
	client Client
	e      *suite
	shared bool
}

// open starts a service and connects to it.
func (e *suite) open(t testing.TB) *host {
	t.Helper()
	h := &host{Host: e.Open(t), e: e}
	h.connect(t)
	t.Cleanup(func() { h.disconnect(t) })
	return h
}

// private is a host of a case that kills launchers, or connects more than once.
func (e *suite) private(t testing.TB) *host {
	t.Helper()
	return e.open(t)
}

func (h *host) connect(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), boxtest.Patience)
	defer cancel()
	client, err := h.Connect(ctx)
	if err != nil {
		t.Fatal(err)
	}
	h.client = client
}

func (h *host) disconnect(t testing.TB) {
	t.Helper()
	if err := h.client.Close(); err != nil {
		t.Error(err)
	}
}

// spec returns s with the engine of this run.
func (e *suite) spec(s engine.Spec) engine.Spec {
	s.Engine, s.Isolation = e.Engine, e.Isolation
	return s
}

// tryCreate creates a box of the engine of this run.
func (h *host) tryCreate(ctx context.Context, s engine.Spec) (engine.LiveBox, error) {
	return h.client.Create(ctx, h.e.spec(s))
}

// create creates a box. On a shared host, the test removes it.
func (h *host) create(t testing.TB, s engine.Spec) engine.LiveBox {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), boxtest.Patience)
	defer cancel()
	b, err := h.tryCreate(ctx, s)
	if err != nil {
		t.Fatal(err)
	}
	if h.shared {
		t.Cleanup(func() { boxtest.Remove(t, b) })
	}
	return b
}

func (h *host) adopt(t testing.TB, id string) engine.LiveBox {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), boxtest.Patience)
	defer cancel()
	b, err := h.client.Adopt(ctx, id, engine.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// wantNoCommands: when the end of a command is reported, everything that was killed is gone.
func (h *host) wantNoCommands(t testing.TB, b engine.Box) {
	t.Helper()
	if pids := h.Commands(t, b.ID()); len(pids) > 0 {
		t.Errorf("still running in the box, by their process IDs on the host: %v", pids)
	}
}

// killInit kills PID 1 of a box.
func (h *host) killInit(t testing.TB, b engine.Box) {
	t.Helper()
	pids := h.Init(t, b.ID())
	if len(pids) == 0 {
		t.Fatal("there is no PID 1")
	}
	for _, pid := range pids {
		ok(t, syscall.Kill(pid, syscall.SIGKILL))
	}
}

// makeVolume makes a volume and returns a mount of all of it.
func (h *host) makeVolume(t testing.TB, name string, bytes, inodes int64, target string) engine.Mount {
	t.Helper()
	if err := h.client.MakeVolume(t.Context(), engine.Volume{Name: name, Bytes: bytes, Inodes: inodes}); err != nil {
		t.Fatal(err)
	}
	return engine.Mount{Source: "/", Target: target, Volume: name}
}

func (h *host) volume(t testing.TB, name string) (st engine.VolumeState, ok bool) {
	t.Helper()
	all, err := h.client.Volumes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range all {
		if v.Name == name {
			return v, true
		}
	}
	return st, false
}

func ok(t testing.TB, err ...error) {
	t.Helper()
	if err := errors.Join(err...); err != nil {
		t.Fatal(err)
	}
}
