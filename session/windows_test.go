package session

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/boxd/boxd/engine/enginetest"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
)

// TestEveryWindow lets the manager die before and after each thing that it asks of the
// engine, which are the windows between two writes of the database, and looks whether
// its successor finds everything in order; also if that one dies at its first steps.
func TestEveryWindow(t *testing.T) {
	for again := range int64(5) {
		for at := int64(1); ; at++ {
			w := &windows{bench: newBench(t), acked: map[string]bool{}, begun: map[string]bool{}}
			w.alter = func(o *Options) { o.StopGrace, o.KeepEnded = time.Millisecond, 1 }
			w.start()
			w.dieAt(at, true)
			w.scenario()
			through := w.bury()
			if again > 0 {
				w.dieAt(again, false)
				if w.tryStart() == nil {
					w.eventually("its death or its end of work", func() bool { return w.ctx.Err() != nil || w.settled() })
				}
				w.bury()
			}
			w.start()
			t.Run(fmt.Sprintf("%d %s, %d", at, w.died, again), func(t *testing.T) {
				w.t = t
				w.check()
			})
			w.Close(ctx, false)
			if t.Failed() {
				return
			}
			if through {
				t.Logf("%d windows", at-1)
				break
			}
		}
	}
}

// dieAt has the manager die at that step from now on: from then on it has no effect on
// the engine, and with both not on the database either, whose last words are lost.
func (w *windows) dieAt(at int64, both bool) {
	w.ctx, w.die = context.WithCancel(ctx)
	w.at, w.both, w.good = at, both, nil
	w.steps.Store(0)
	w.host.SetHook(w.hook)
}

// bury waits for the end of the manager, and reports whether it has survived.
func (w *windows) bury() bool {
	w.host.SetHook(nil)
	w.Manager.Close(ctx, false)
	w.die()
	if w.good == nil {
		return true
	}
	must(w.t, w.good.Close())
	// What it has done to its directories after its death has not happened either.
	must(w.t, os.RemoveAll(w.workspaceDir()))
	must(w.t, os.Rename(w.atDeath(), w.workspaceDir()))
	return false
}

func (w *windows) workspaceDir() string { return filepath.Join(w.dir, "workspaces") }
func (w *windows) atDeath() string      { return filepath.Join(w.dir, "workspaces-at-death") }

type windows struct {
	*bench
	at    int64 // the step at which the manager dies
	both  bool
	steps atomic.Int64
	died  string
	ctx   context.Context // of the callers, who do not wait for a dead manager
	die   context.CancelFunc
	good  *bbolt.DB
	begun map[string]bool // requests
	acked map[string]bool // requests that were answered as done
	pid   int
}

func (w *windows) hook(_ context.Context, op, _ string) error {
	if w.steps.Add(1) == w.at {
		w.died = op
		if w.both {
			w.good = w.Manager.store.db
			w.breakStore()
			must(w.t, os.CopyFS(w.atDeath(), os.DirFS(w.workspaceDir())))
		}
		w.client.Cut()
		w.die()
	}
	return nil
}

// scenario does one of everything.
func (w *windows) scenario() {
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"a", func() error { return second(w.Ensure(w.ctx, me, keyA, policy.Request{})) }},
		{"b", func() error { return second(w.Ensure(w.ctx, me, keyB, sizedWorkspace)) }},
		{"c", func() error { return second(w.Ensure(w.ctx, me, keyC, sizedWorkspace)) }},
		{"p", w.startP},
		{"q", func() error {
			return second(w.Start(w.ctx, me, keyA, nil, ProcessSpec{ID: "q", Args: []string{"stubborn"}}))
		}},
		{"volume", func() error {
			return second(w.CreateVolume(w.ctx, me, "t", "data", VolumeLimits{Bytes: 8 << 20}))
		}},
		{"attach", func() error {
			return second(w.Update(w.ctx, me, keyA, spec.Update{AttachVolumes: []spec.VolumeWish{dataAt("/d", false)}, Attach: []spec.MountWish{{Source: "/srv/data/x", Target: "/x"}}, LiveWishes: spec.LiveWishes{Memory: ptr(spec.Size(1 << 30))}}))
		}},
		{"stop", func() error {
			return w.onProcess("q", func(p *Process) error { return p.Stop(w.ctx, me, StopOptions{}) })
		}},
		{"again", func() error {
			return second(w.Start(w.ctx, me, keyA, nil, ProcessSpec{ID: "q", Args: []string{"exit", "7"}}))
		}},
		{"forget", func() error { return w.onProcess("q", func(p *Process) error { return p.Remove(w.ctx, me) }) }},
		{"detach", func() error { return second(w.Update(w.ctx, me, keyA, spec.Update{Detach: []string{"/x", "/d"}})) }},
		{"resize", func() error {
			return second(w.ResizeVolume(w.ctx, me, "t", "data", VolumeLimits{Bytes: 9 << 20}))
		}},
		{"remove volume", func() error { return w.RemoveVolume(w.ctx, me, "t", "data") }},
		{"replace", func() error {
			w.host.Kill(w.boxOf(keyB))
			return second(w.Exec(w.ctx, me, keyB, nil, Exec{Args: []string{"true"}}))
		}},
		{"remove", func() error { return w.Remove(w.ctx, me, keyB) }},
	} {
		w.begun[step.name] = true
		w.acked[step.name] = step.do() == nil
	}
}

var (
	keyC           = Key{"t", "c"}
	sizedWorkspace = policy.Request{Wishes: spec.Wishes{WorkspaceSize: ptr(spec.Size(8 << 20))}}
)

func (w *windows) startP() error {
	v, err := w.Start(w.ctx, me, keyA, nil, ProcessSpec{ID: "p", Args: []string{"serve"}})
	w.pid = v.PID
	return err
}

func (w *windows) onProcess(id string, fn func(p *Process) error) error {
	p, err := w.Process(keyA, id)
	if err != nil {
		return err
	}
	return fn(p)
}

func (w *windows) boxOf(key Key) string {
	v, _ := w.Get(key) // no box has no name
	return v.Box
}

// check reports everything that is wrong.
func (w *windows) check() {
	w.t.Helper()
	w.eventually("the end of what goes on", w.settled)
	w.eventually("figures that agree", func() bool {
		use, _ := w.Quota("t")
		var bytes spec.Size
		for _, v := range w.Volumes(ctx, "t") {
			bytes += v.Bytes
		}
		return use.Volumes == int64(len(w.Volumes(ctx, "t"))) && use.VolumeBytes == bytes && use.Sessions == int64(len(w.List("t"))) && use.Execs == 0 && use.Processes == int64(w.Stats().ProcessesRunning)
	})
	w.checkAnswers()
	w.checkDisk()
	for _, v := range w.List("t") {
		if b := w.host.Box(v.Box); b != nil && (!slices.Equal(b.Spec().Mounts, v.Resolved.Mounts) || b.Spec().Limits.Memory != int64(v.Resolved.Memory)) {
			w.t.Errorf("box %+v, session %+v", b.Spec(), v.Resolved.Spec())
		}
	}
}

// settled reports whether nothing is left to be done.
func (w *windows) settled() bool {
	st := w.Stats()
	left, _ := os.ReadDir(filepath.Join(w.dir, "workspaces", ".trash"))
	return st.States[Stopping] == 0 && len(w.host.IDs()) == st.States[Running] && w.processesAgree() && w.volumesAgree() && len(left) == 0
}

// volumesAgree reports whether there are the volumes that sessions have and those with a name,
// and no other, and the sessions of each are those that say so.
func (b *bench) volumesAgree() bool {
	var want []string
	for _, v := range b.List("") {
		if name := volumeOf(v.Resolved); name != "" {
			want = append(want, name)
		}
	}
	for _, v := range b.Volumes(ctx, "") {
		id := policy.VolumeID(v.Tenant, v.Name)
		want = append(want, id)
		var sessions []Attachment
		for _, s := range b.List(v.Tenant) {
			for _, m := range s.Resolved.Mounts {
				if m.Volume == id {
					sessions = append(sessions, Attachment{s.ID, m.ReadOnly})
				}
			}
		}
		if has := b.host.Volume(id); has == nil || v.Removing || spec.Size(has.Bytes) != v.Bytes || !slices.Equal(sessions, v.Attached) {
			return false
		}
	}
	slices.Sort(want)
	return slices.Equal(b.host.VolumeNames(), want)
}

// processesAgree reports whether boxes have the processes that they are said to have.
func (w *windows) processesAgree() bool {
	for _, v := range w.List("t") {
		list, _ := w.Processes(v.Key)
		known := 0
		for _, p := range list {
			var truth *enginetest.Process
			if b := w.host.Box(v.Box); b != nil {
				truth = b.Process(p.Key)
			}
			if truth != nil {
				known++
			}
			if p.State.Ended() != (truth == nil || isDone(truth.Done())) {
				return false
			}
		}
		if b := w.host.Box(v.Box); b != nil && known != len(b.Processes()) {
			return false
		}
	}
	return true
}

// checkAnswers compares the answers with what exists.
func (w *windows) checkAnswers() {
	w.t.Helper()
	if _, err := w.Get(keyA); err != nil && w.acked["a"] {
		w.t.Error(err)
	}
	if _, err := w.Get(keyB); (err != nil && w.acked["b"] && !w.begun["remove"]) || (err == nil && w.acked["remove"]) {
		w.t.Errorf("b: %v", err)
	}
	if v, err := w.Get(keyC); w.acked["c"] && (err != nil || volumeOf(v.Resolved) != volumeName(keyC)) {
		w.t.Errorf("c: %+v, %v", v.Resolved, err)
	}
	switch v, err := w.Volume(ctx, "t", "data"); {
	case w.acked["volume"] && !w.begun["remove volume"] && err != nil, w.acked["remove volume"] && err == nil:
		w.t.Errorf("volume: %+v, %v", v, err)
	case err == nil && w.acked["resize"] && v.Bytes != 9<<20, err == nil && !w.begun["resize"] && v.Bytes != 8<<20:
		w.t.Errorf("the volume has %s", v.Bytes)
	case w.acked["attach"] && !w.begun["detach"] && len(v.Attached) != 1, w.acked["detach"] && len(v.Attached) != 0:
		w.t.Errorf("the volume is attached to %+v", v.Attached)
	}
	if p, err := w.Process(keyA, "p"); w.acked["p"] && (err != nil || p.View().State != ProcessRunning || p.View().PID != w.pid) {
		w.t.Errorf("p: %v", err)
	}
	q, err := w.Process(keyA, "q")
	switch {
	case w.acked["forget"]:
		if err == nil {
			w.t.Errorf("q was removed: %+v", q.View())
		}
	case w.acked["again"] && err == nil:
		v := q.View()
		if stopped := v.State == ProcessStopped && w.begun["forget"]; (v.State != ProcessExited && !stopped) || *v.ExitCode != 7 {
			w.t.Errorf("q: %+v", v)
		}
	}
}

// checkDisk looks for workspaces and records without an owner.
func (w *windows) checkDisk() {
	w.t.Helper()
	dirs, _ := filepath.Glob(filepath.Join(w.dir, "workspaces", "*", "*"))
	_, err := w.Get(keyA) // the only one that has a directory
	if (len(dirs) == 1) != (err == nil) || len(dirs) > 1 {
		w.t.Errorf("workspaces %v, session a: %v", dirs, err)
	}
	must(w.t, w.Manager.store.db.View(func(tx *bbolt.Tx) error {
		return tx.Bucket(processBucket).ForEach(func(k, v []byte) error {
			r, err := decodeProcess(k, v)
			if _, e := w.Process(r.key(), r.ID); err != nil || e != nil {
				w.t.Errorf("record %q: %v, %v", k, err, e)
			}
			return nil
		})
	}))
}
