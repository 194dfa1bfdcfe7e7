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
	// history is the size of a process's ring for stdout. A line of 1 MiB, which is sent in one
	// message, fits in next to the part that a ring keeps free. The ring for stderr holds the
	// preview. The rings of 64 running and 16 ended processes stay below what the rings of one
	// box may have in total.
	history       = 2 << 20
	stderrHistory = 32 << 10
	// stopGrace is the time between SIGTERM and SIGKILL.
	stopGrace = 5 * time.Second
)

// startProcess starts a managed process, and replaces one with the same ID.
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
		if _, e := k.s.find(k.at, id); e != nil { // the session was deleted meanwhile
			return nil, e
		}
		return nil, err
	}
	return k.s.processInfo(p), nil
}

// replaceProcess stops the process that has the ID of spec, and registers a new one in its
// place, which has yet to be started.
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
	if stray, err := k.s.sessions.Process(b.key, name); err == nil && (old == nil || stray != old.live) { // it has no record
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
	if err := k.roomForProcessLocked(nil); err != nil { // others may have started meanwhile
		return nil, err
	}
	b.processes[p.id] = p
	return p, nil
}

// roomForProcessLocked refuses a process that would exceed the instance's limit. old, if any,
// is about to be replaced and does not count. s.mu is held.
func (k *call) roomForProcessLocked(old *process) error {
	most := k.s.settingsLocked(k.at.Instance).limits.MaxManagedProcesses
	count := k.s.runningLocked(func(p *process) bool { return p != old && p.b.at.Instance == k.at.Instance })
	if int64(count) >= most {
		return protocol.Errorf(protocol.CapacityExceeded, "Box managed process capacity reached (%d)", most)
	}
	return nil
}

// runningLocked counts the processes that run or start and for which ok returns true.
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

// launch starts p. A login shell looks the program up, as it would for a person, and execs it.
func (k *call) launch(ctx context.Context, p *process, spec *protocol.ProcessSpec) error {
	s := k.s
	s.mu.Lock()
	if p.b.state != alive { // the record may already belong to its successor
		s.mu.Unlock()
		return notFound(k.at, p.b.physical)
	}
	noted := s.noteLocked(p.b) // in parallel with the start: the next server clears away one without the other
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
		if errors.Is(err, session.ErrNotFound) { // if the whole session is gone, the caller finds that first
			err = protocol.Errorf(protocol.BoxError, "managed process %s has ended, and was forgotten at once because too many others ended with it", p.id)
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

// removeLater removes a process that has no record, in the background.
func (s *Server) removeLater(key session.Key, name string) {
	p, err := s.sessions.Process(key, name) // looked up now, because another may get the name later
	if err != nil {
		return
	}
	s.background(func(ctx context.Context) {
		err := p.Remove(ctx, s.self())
		if err != nil && !errors.Is(err, session.ErrNotFound) && ctx.Err() == nil {
			s.log.Warn("removing a process that has no record", "session", key.ID, "process", name, "error", err)
		}
	})
}

// stopProcess stops a running process, or forgets one that has ended.
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
	if p, err = k.process(); err != nil { // it was replaced or stopped while this request waited
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

// stop ends a process, if it runs, and forgets it. The caller holds its lock.
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
