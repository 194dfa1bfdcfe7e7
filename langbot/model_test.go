package langbot

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/boxd/boxd/langbot/protocol"
)

// model is the expected state of the sessions.
type model struct {
	b    *bench
	rand *rand.Rand
	gen  map[string]int64             // of workspaces
	have map[protocol.Context]modeled // by workspace at its generation
}

// modeled holds the sessions of one workspace by name.
type modeled map[string]*modelBox

type modelBox struct {
	cpus  float64
	procs map[string]bool // running
	used  time.Time
}

// TestModel requests random actions, one at a time, and compares each answer and the state after it.
func TestModel(t *testing.T) {
	for seed := range uint64(6) {
		bubble(t, func(b *bench) {
			b.call("box_init", object{"limits": object{"max_sessions": modelSessions, "max_managed_processes": modelProcesses, "completed_process_retention_sec": 0}})
			m := &model{b, rand.New(rand.NewPCG(seed, 1)), map[string]int64{}, map[protocol.Context]modeled{}}
			for step := range 120 {
				what := m.step()
				synctest.Wait()
				if diff := m.differs(); diff != "" {
					t.Fatalf("seed %d, step %d, after %s: %s", seed, step, what, diff)
				}
			}
		})
		if t.Failed() {
			return
		}
	}
}

const (
	modelSessions  = 5
	modelProcesses = 4
)

func (m *model) step() string {
	if m.rand.IntN(25) == 0 {
		m.b.restart()
		m.b.call("box_init", object{"limits": object{"max_sessions": modelSessions, "max_managed_processes": modelProcesses, "completed_process_retention_sec": 0}})
		for _, boxes := range m.have { // the idle time starts over
			for _, box := range boxes {
				box.used = time.Now()
			}
		}
		return "a restart"
	}
	if m.rand.IntN(15) == 0 {
		d := time.Duration(m.rand.IntN(400)) * time.Second
		time.Sleep(d)
		m.expire()
		return fmt.Sprint("a sleep of ", d)
	}
	ws := []string{"v", "w"}[m.rand.IntN(2)]
	if m.gen[ws] == 0 || m.rand.IntN(40) == 0 {
		m.gen[ws]++
		delete(m.have, protocol.Context{Instance: "i", Workspace: ws, Generation: m.gen[ws] - 1})
	}
	c := protocol.Context{Instance: "i", Workspace: ws, Generation: m.gen[ws]}
	if m.have[c] == nil {
		m.have[c] = modeled{}
	}
	m.ask(c, "box_status", object{}, nil) // so that the generation is known
	id := fmt.Sprint("s", m.rand.IntN(4))
	switch m.rand.IntN(9) {
	case 0, 1:
		m.ensure(c, id, "box_create_session")
	case 2, 3:
		m.ensure(c, id, "box_exec")
	case 4:
		m.ask(c, "box_delete_session", object{"session_id": id}, m.known(c, id))
		delete(m.have[c], id)
	case 5:
		m.start(c, id)
	case 6:
		m.stop(c, id)
	case 7:
		if box := m.have[c][id]; box != nil && m.known(c, id) == nil {
			m.timeout(c, id, box)
		}
	case 8:
		if m.rand.IntN(6) == 0 {
			m.ask(c, "box_shutdown", object{}, nil)
			clear(m.have)
		}
	}
	return fmt.Sprintf("something with %s of %v", id, c)
}

// ask requests an action and expects an error of want's class, or none.
func (m *model) ask(c protocol.Context, action string, data object, want error) {
	_, err := m.b.try(context.Background(), &c, action, data)
	var got, wanted *protocol.Error
	errors.As(err, &got)
	errors.As(want, &wanted)
	if (err == nil) != (want == nil) || wanted != nil && (got == nil || got.Class != wanted.Class) {
		m.b.Fatalf("%s %v of %v: %v, want %v", action, data, c, err, want)
	}
}

func (m *model) known(c protocol.Context, id string) error {
	if m.have[c][id] == nil {
		return protocol.Errorf(protocol.SessionNotFound, "")
	}
	return nil
}

func (m *model) count() (sessions, processes int) {
	for _, boxes := range m.have {
		sessions += len(boxes)
		for _, box := range boxes {
			processes += len(box.procs)
		}
	}
	return sessions, processes
}

func (m *model) ensure(c protocol.Context, id, action string) {
	cpus := []float64{0.5, 1}[m.rand.IntN(2)]
	n, _ := m.count()
	box := m.have[c][id]
	var want error
	switch {
	case box != nil && box.cpus != cpus:
		want = protocol.Errorf(protocol.SessionConflict, "")
	case box == nil && n >= modelSessions:
		want = protocol.Errorf(protocol.CapacityExceeded, "")
	}
	m.ask(c, action, specOf(id, object{"cmd": "true", "cpus": cpus}), want)
	if want == nil {
		if box == nil {
			box = &modelBox{cpus: cpus, procs: map[string]bool{}}
			m.have[c][id] = box
		}
		box.used = time.Now()
	}
}

func (m *model) start(c protocol.Context, id string) {
	name := fmt.Sprint("p", m.rand.IntN(3))
	want := m.known(c, id)
	if _, n := m.count(); want == nil && n >= modelProcesses && !m.have[c][id].procs[name] {
		want = protocol.Errorf(protocol.CapacityExceeded, "")
	}
	command := []string{"serve", "exit"}[m.rand.IntN(2)]
	m.ask(c, "box_start_managed_process", proc(id, name, command, "1"), want)
	if want == nil {
		box := m.have[c][id]
		box.used = time.Now()
		if delete(box.procs, name); command == "serve" {
			box.procs[name] = true
		}
	}
}

func (m *model) stop(c protocol.Context, id string) {
	want := m.known(c, id)
	name := "p0"
	if want == nil && !m.have[c][id].procs[name] {
		want = protocol.Errorf(protocol.ManagedProcessNotFound, "")
	}
	m.ask(c, "box_stop_managed_process", object{"session_id": id, "process_id": name}, want)
	if want == nil {
		delete(m.have[c][id].procs, name)
		m.have[c][id].used = time.Now()
	}
}

func (m *model) timeout(c protocol.Context, id string, box *modelBox) {
	m.ask(c, "box_exec", specOf(id, object{"cmd": "wait", "cpus": box.cpus, "timeout_sec": 1}), nil)
	delete(m.have[c], id)
	m.expire()
}

// expire drops sessions that were unused for too long.
func (m *model) expire() {
	for _, boxes := range m.have {
		for id, box := range boxes {
			if len(box.procs) == 0 && time.Since(box.used) >= 300*time.Second {
				delete(boxes, id)
			}
		}
	}
}

// differs describes how the actual state differs from the model.
func (m *model) differs() string {
	sessions, processes := m.count()
	boxes := m.b.host.IDs()
	running := 0
	for _, id := range boxes {
		running += len(m.b.host.Box(id).Processes())
	}
	if len(boxes) != sessions || running != processes || len(m.b.server.boxes) != sessions {
		return fmt.Sprintf("%d boxes, %d processes in them and %d sessions; want %d sessions and %d processes", len(boxes), running, len(m.b.server.boxes), sessions, processes)
	}
	for c, want := range m.have {
		if c.Generation != m.gen[c.Workspace] {
			continue
		}
		ids := m.b.sessionsOf(c)
		slices.Sort(ids)
		if !slices.Equal(ids, slices.Sorted(maps.Keys(want))) {
			return fmt.Sprintf("%v has %q, want %q", c, ids, slices.Sorted(maps.Keys(want)))
		}
		st := m.b.callAt(c, "box_status", object{})
		n := 0
		for _, box := range want {
			n += len(box.procs)
		}
		if st["active_sessions"] != float64(len(want)) || st["managed_processes"] != float64(n) {
			return fmt.Sprintf("%v: status %v, want %d sessions and %d processes", c, st, len(want), n)
		}
	}
	return ""
}

// TestManyAtOnce requests random actions concurrently: nothing may hang, nothing may be left over,
// and no session may be created twice.
func TestManyAtOnce(t *testing.T) {
	for seed := range uint64(10) {
		bubble(t, func(b *bench) {
			var wg sync.WaitGroup
			for worker := range uint64(8) {
				r := rand.New(rand.NewPCG(seed, worker))
				wg.Go(func() {
					for range 40 {
						ctx, cancel := context.WithTimeout(context.Background(), time.Duration(r.IntN(5000))*time.Millisecond)
						id := fmt.Sprint("s", r.IntN(3))
						c := at
						if r.IntN(60) == 0 {
							c.Generation = 1 + int64(r.IntN(3))
						}
						var err error
						switch r.IntN(7) {
						case 0, 1:
							_, err = b.try(ctx, &c, "box_exec", specOf(id, object{"cmd": []string{"true", "wait", "die"}[r.IntN(3)], "timeout_sec": 1 + r.IntN(3)}))
						case 2:
							_, err = b.try(ctx, &c, "box_create_session", specOf(id, nil))
						case 3:
							_, err = b.try(ctx, &c, "box_delete_session", object{"session_id": id})
						case 4:
							_, err = b.try(ctx, &c, "box_start_managed_process", proc(id, fmt.Sprint(r.IntN(2)), []string{"serve", "stubborn", "exit"}[r.IntN(3)], "0"))
						case 5:
							_, err = b.try(ctx, &c, "box_stop_managed_process", object{"session_id": id, "process_id": fmt.Sprint(r.IntN(2))})
						case 6:
							_, err = b.try(ctx, &c, "box_get_sessions", object{})
						}
						cancel()
						var known *protocol.Error
						if err != nil && !errors.As(err, &known) {
							t.Errorf("%v is no error of the protocol", err)
						}
					}
				})
			}
			wg.Wait()
			if g, _ := b.server.Current("i", "w"); g > 1 {
				now := at
				now.Generation = g
				b.callAt(now, "box_shutdown", object{})
			} else {
				b.call("box_shutdown", object{})
			}
			synctest.Wait()
			if ids := b.host.IDs(); len(ids) != 0 || len(b.server.boxes) != 0 || len(b.sessions.List("")) != 0 || b.server.ops.Len() != 0 {
				t.Errorf("seed %d: boxes %q, %d sessions, %d of the manager's and %d locks are left", seed, ids, len(b.server.boxes), len(b.sessions.List("")), b.server.ops.Len())
			}
		})
	}
}
