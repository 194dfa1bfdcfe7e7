package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/choose"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/cleanup"
	"github.com/boxd/boxd/session/workspace"
)

// lockName is the lock file, beside the database.
const lockName = "daemon.lock"

// Open locks the state directory (ErrLocked if another daemon holds it) and continues where
// the last manager stopped: it takes over boxes and managed processes, and removes those
// without an owner. This goes on after Open has returned; a call that needs a session waits
// only for that session. Open renames and keeps a damaged database, and recovers its
// sessions from the labels of their boxes before it returns.
//
// The idle time of every session starts anew. ctx bounds only Open itself.
func Open(ctx context.Context, o Options) (_ *Manager, err error) {
	var undo cleanup.Stack
	defer undo.Undo(&err)
	if err := os.MkdirAll(filepath.Dir(o.DB), 0o700); err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	lock := o.Lock
	if lock == nil {
		if lock, err = LockState(filepath.Dir(o.DB)); err != nil {
			return nil, err
		}
		undo.Push(lock.Close)
	}
	spaces, err := workspace.Open(o.Workspaces)
	if err != nil {
		return nil, err
	}
	undo.Push(spaces.Close)
	if o.Storage != nil {
		spaces.Reclaim = func(ctx context.Context, path string) error {
			f, err := o.Storage.OpenDirectory(ctx, engine.Directory{Path: path, Within: spaces.Root(), Reclaim: true})
			if err != nil {
				return err
			}
			return f.Close()
		}
	}
	db, got, err := openStore(o.DB)
	if err != nil {
		return nil, err
	}
	m := newManager(o, db, got.epoch)
	m.workspaces, m.lock = spaces, lock
	undo.Push(func() error { m.join(); m.closeOutbox(); return db.close() })
	m.openOutbox(got.outbox)
	if err := m.openHistory(); err != nil {
		return nil, err
	}
	undo.Push(func() error { m.join(); return m.history.Close() })
	left, err := m.recover(ctx, got)
	if err != nil {
		return nil, err
	}
	undo.Release()
	m.retainLeases()
	for _, s := range m.all("") { // before a new session could take one of the ports
		s.republishPorts()
	}
	// A command that has no end before this entry was killed when its box was taken over,
	// or lost with the box.
	st := m.Stats()
	details := map[string]any{"sessions": st.States, "discarded": st.Discarded}
	_ = m.audit(system, Key{}, audit.Entry{Action: "open", Decision: audit.Done, Details: details}) // reports its error
	m.spawn(func() { m.takeOverAll(left) })
	if got.uncounted {
		m.spawn(func() { m.retry(func(context.Context) error { return m.store.write(epoch(got.epoch)) }) })
	}
	m.spawn(m.expire)
	m.spawn(m.sweepTrash)
	m.spawn(m.measureAll)
	m.spawn(m.meterBoxes)
	m.spawn(m.watchPorts)
	if o.MinFree > 0 {
		m.spawn(m.guard)
	}
	return m, nil
}

func newManager(o Options, st *store, epoch uint64) *Manager {
	o.OutputLimit = cmp.Or(o.OutputLimit, DefaultOutputLimit)
	o.CaptureLimit = max(0, cmp.Or(o.CaptureLimit, DefaultCaptureLimit))
	o.History = cmp.Or(o.History, engine.DefaultHistory)
	o.KeepEnded = max(0, cmp.Or(o.KeepEnded, DefaultKeepEnded))
	o.StopGrace = cmp.Or(o.StopGrace, DefaultStopGrace)
	m := &Manager{
		options: o, engine: o.Engine, engines: choose.New[engine.LiveBox](o.Engine), policy: o.Policy, ledger: o.Policy.NewLedger(), throttle: o.Policy.NewThrottle(),
		log: cmp.Or(o.Logger, slog.Default()), store: st, opened: time.Now(),
		events: newBroker(epoch), sessions: map[Key]*session{},
		volumes:    volumes{leaving: map[string]chan struct{}{}, kept: map[string]bool{}},
		named:      namedVolumes{all: map[string]*namedVolume{}, holders: map[string]map[Key]bool{}, going: map[string]goingBox{}},
		sensitive:  sensitivity{volumes: map[string]spec.Sensitive{}, paths: map[string]sensitiveRecord{}, copies: map[copying]int{}},
		publishing: publishing{taken: map[int]*session{}},
		portWatch:  portWatch{wake: make(chan struct{}, 1), watchers: map[string]int{}, due: map[*session]bool{}},
		tidied:     tidied{under: map[string]int{}, ended: make(chan struct{})},
		tidying:    make(chan struct{}, maxTidying), reapers: make(chan struct{}, parallel), wake: make(chan struct{}, 1), adopted: make(chan struct{}), done: make(chan struct{}),
	}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	return m
}

// sweepTrash deletes the remains of workspaces that could not be deleted before.
func (m *Manager) sweepTrash() {
	if err := m.workspaces.Sweep(m.ctx); err != nil && m.ctx.Err() == nil {
		m.report(Key{}, "", err.Error())
	}
}

// join ends all goroutines and calls, and waits for them.
func (m *Manager) join() {
	m.cancel()
	m.mu.Lock()
	m.closing, m.joined = true, true
	m.mu.Unlock()
	m.wg.Wait()
}

// Close releases all sessions, which live on, and cancels running commands. With stop it
// ends the sessions first, as far as ctx allows: persistent sessions keep their workspace
// and get a new box at their next use, and so do those with the setting retain; all others
// are removed. Close waits for everything
// that was started. A second Close waits for the first.
func (m *Manager) Close(ctx context.Context, stop bool) error {
	m.mu.Lock()
	first := !m.closing
	m.closing = true
	m.mu.Unlock()
	if !first {
		<-m.done
		return nil
	}
	defer close(m.done)
	var err error
	if stop {
		err = m.stopAll(ctx)
	}
	m.join()
	m.countBoxes()
	m.closeOutbox()
	m.events.close()
	_ = m.audit(system, Key{}, audit.Entry{Action: "close", Decision: audit.Done}) // reports its error
	return errors.Join(err, m.noteLast(), m.history.Close(), m.store.close(), m.workspaces.Close(), m.lock.Close())
}

// noteLast records the remaining lifetimes and the bytes that boxes have moved, and for each box whether it runs if that could
// not be recorded before. Everything else has stopped when it is called.
func (m *Manager) noteLast() error {
	var changes []change
	for _, s := range m.all("") {
		s.mu.Lock()
		r := s.recording
		switch {
		case r != nil && r.err != nil:
			changes = append(changes, r.changes(s)...)
		case s.lifeEnd > 0 && s.record.State != Creating, s.record.NetworkBytes > 0 && s.record.State == Running:
			changes = append(changes, s.putLocked()...)
		}
		s.mu.Unlock()
	}
	if len(changes) == 0 {
		return nil
	}
	return m.store.write(changes...)
}
