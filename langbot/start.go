package langbot

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/boxd/boxd/langbot/protocol"
	"github.com/boxd/boxd/policy"
	"github.com/boxd/boxd/session"
)

const (
	// history is the size of the output ring of a process: a line of 1 MiB, which is sent
	// whole, fits in beside what a ring keeps free. That of stderr holds the preview. 64
	// processes of a session, and 16 that have ended, are below what the rings of a box
	// may have together.
	history       = 2 << 20
	stderrHistory = 32 << 10
	// stopGrace is the time between SIGTERM and SIGKILL.
	stopGrace = 5 * time.Second
)

// startProcess starts a managed process, in the place of one that has its id.
func (k *call) startProcess(ctx context.Context) (any, error) {
	id, err := k.session()
	if err != nil {
		return nil, err
	}
	raw, err := protocol.Need(k.data, "spec")
	if err != nil {
		return nil, err
	}
	spec, err := protocol.ParseProcessSpec(raw)
	if err != nil {
		return nil, err
	}
	b, err := k.s.find(k.at, id)
	if err != nil {
		return nil, err
	}
	unlock, err := k.s.ops.LockContext(ctx, processName(b, spec.ProcessID))
	if err != nil {
		return nil, err
	}
	defer unlock()
	p, err := k.replaceProcess(ctx, b, &spec)
	if err != nil {
		return nil, err
	}
	if err := k.launch(ctx, p, &spec); err != nil {
		k.s.dropProcess(p)
		if _, e := k.s.find(k.at, id); e != nil { // deleted meanwhile
			return nil, e
		}
		return nil, err
	}
	return k.s.processInfo(p), nil
}

// replaceProcess stops the process that has the id of spec, and puts a new one in its
// place, which has yet to start.
func (k *call) replaceProcess(ctx context.Context, b *box, spec *protocol.ProcessSpec) (*process, error) {
	name, err := policy.ScopeID("{id}", map[string]string{"id": spec.ProcessID}, false)
	if err != nil {
		return nil, err
	}
	p := &process{b: b, id: spec.ProcessID, started: time.Now(), gone: make(chan struct{}), processRecord: processRecord{
		Name: name, Command: spec.Command, Args: append([]string{}, spec.Args...), Cwd: spec.Cwd,
		EnvKeys: append([]string{}, slices.Sorted(maps.Keys(spec.Env))...),
	}}
	k.s.mu.Lock()
	old := b.processes[p.id]
	runs := old != nil && old.runsLocked()
	err = k.roomForProcessLocked(old)
	k.s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if runs {
		if err := old.live.Stop(ctx, k.who(), session.StopOptions{Grace: stopGrace}); err != nil {
			return nil, err
		}
	}
	if stray, err := k.s.sessions.Process(b.key, name); err == nil && (old == nil || stray != old.live) { // on no record
		if err := stray.Remove(ctx, k.who()); err != nil && !errors.Is(err, session.ErrNotFound) {
			return nil, err
		}
	}
	if old != nil {
		k.s.dropProcess(old)
	}
	k.s.mu.Lock()
	defer k.s.mu.Unlock()
	if b.state != alive {
		return nil, notFound(k.at, b.physical)
	}
	if err := k.roomForProcessLocked(nil); err != nil { // others may have come meanwhile
		return nil, err
	}
	b.processes[p.id] = p
	return p, nil
}

// roomForProcessLocked refuses a process beyond those that the instance may have. old is
// going to make room. s.mu is held.
func (k *call) roomForProcessLocked(old *process) error {
	most := k.s.settingsLocked(k.at.Instance).limits.MaxManagedProcesses
	count := k.s.runningLocked(func(p *process) bool { return p != old && p.b.at.Instance == k.at.Instance })
	if int64(count) >= most {
		return protocol.Errorf(protocol.CapacityExceeded, "Box managed process capacity reached (%d)", most)
	}
	return nil
}

// runningLocked counts the processes that run or start, of those of which ok says yes.
func (s *Server) runningLocked(ok func(*process) bool) (count int) {
	for _, b := range s.boxes {
		for _, p := range b.processes {
			if ok(p) && p.runsLocked() {
				count++
			}
		}
	}
	return count
}

// launch starts p. The shell finds the program, as it would for a person, and becomes it.
func (k *call) launch(ctx context.Context, p *process, spec *protocol.ProcessSpec) error {
	s := k.s
	s.mu.Lock()
	if p.b.state != alive { // the record may be that of its successor by now
		s.mu.Unlock()
		return notFound(k.at, p.b.physical)
	}
	noted := s.noteLocked(p.b) // beside the start: either without the other is cleared away at the next opening
	s.mu.Unlock()
	_, err := s.sessions.Start(ctx, k.who(), p.b.key, nil, session.ProcessSpec{
		ID: p.Name, Args: append([]string{"sh", "-lc", `exec "$0" "$@"`, spec.Command}, spec.Args...),
		Env: environment(spec.Env), Dir: spec.Cwd, MakeDir: true,
		StderrHistory: stderrHistory, ProcessSettings: session.ProcessSettings{
			History: history, DropStderr: true, Memory: min(spec.MemoryMB, maxMB) << 20,
		},
	})
	started := err == nil
	if e := noted.wait(); err == nil {
		err = e
	}
	var running *session.Process
	if err == nil {
		running, err = s.sessions.Process(p.b.key, p.Name)
		if errors.Is(err, session.ErrNotFound) { // or the session is gone, which the caller tells first
			err = protocol.Errorf(protocol.BoxError, "managed process %s has ended, and so many others with it that it was forgotten at once", p.id)
		}
	}
	if err != nil {
		if started {
			s.removeLater(p.b.key, p.Name)
		}
		return err
	}
	s.mu.Lock()
	p.live, p.started = running, running.View().StartedAt
	s.mu.Unlock()
	s.background(func(ctx context.Context) { s.watch(ctx, p) })
	return nil
}

// removeLater removes a process that nobody knows.
func (s *Server) removeLater(key session.Key, name string) {
	p, err := s.sessions.Process(key, name) // this one, whoever has its name later
	if err != nil {
		return
	}
	s.background(func(ctx context.Context) {
		err := p.Remove(ctx, s.self())
		if err != nil && !errors.Is(err, session.ErrNotFound) && ctx.Err() == nil {
			s.log.Warn("removing a process that is on no record", "session", key.ID, "process", name, "error", err)
		}
	})
}

// stopProcess stops a process, or forgets one that has ended.
func (k *call) stopProcess(ctx context.Context) (any, error) {
	p, err := k.process()
	if err != nil {
		return nil, err
	}
	unlock, err := k.s.ops.LockContext(ctx, processName(p.b, p.id))
	if err != nil {
		return nil, err
	}
	defer unlock()
	if p, err = k.process(); err != nil { // replaced or stopped while we waited
		return nil, err
	}
	if err := k.s.stop(ctx, k.who(), p); err != nil {
		if _, e := k.process(); e != nil {
			return nil, e
		}
		return nil, err
	}
	return map[string]any{"stopped": p.id}, nil
}

// stop ends a process, if it runs, and forgets it. Its lock is held.
func (s *Server) stop(ctx context.Context, who session.Caller, p *process) error {
	if err := p.live.Stop(ctx, who, session.StopOptions{Grace: stopGrace}); err != nil {
		return err
	}
	if err := p.live.Remove(ctx, who); err != nil {
		return err
	}
	s.dropProcess(p)
	return nil
}
