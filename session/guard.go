package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/engine"
)

// The guard keeps boxes from filling the disk of all where workspaces have no hard limit.
// Below Options.MinFree it ends what runs in the session with the largest workspace of
// those that grow, until none takes from the rest. It deletes nothing, and refuses
// nothing: whoever has files there can remove them.

// How often the guard looks: as often as it takes a fast disk to be filled from here on.
const (
	guardSoon  = 100 * time.Millisecond
	guardLater = 5 * time.Second
	diskSpeed  = 4 << 30 // bytes per second
)

// space is what there is of the file system of the workspaces, in bytes.
type space struct{ free, size int64 }

// freeSpace asks for the space that unprivileged users may still have.
func (m *Manager) freeSpace() (space, error) {
	if m.options.space != nil {
		return m.options.space()
	}
	st, err := m.workspaces.Space()
	if err != nil {
		return space{}, err
	}
	return space{free: int64(st.Bavail) * st.Bsize, size: int64(st.Blocks) * st.Bsize}, nil
}

// guard looks at the free space until the manager closes.
func (m *Manager) guard() {
	sizes := map[*session]int64{} // of workspaces, at the last look
	var last int64                // free then, if there was too little
	failing := false
	for pause := guardSoon; ; {
		select {
		case <-m.ctx.Done():
			return
		case <-time.After(pause):
		}
		s, err := m.freeSpace()
		if err != nil && !failing {
			m.report(Key{}, "", "looking for the free space of workspaces: "+err.Error())
		}
		if failing = err != nil; failing {
			pause = guardLater
			continue
		}
		least := s.size / 100 * int64(m.options.MinFree)
		spare := s.free - least
		// Early enough that it is known which of them grow.
		if spare < least {
			sizes = m.look(sizes, s.free, least, spare < 0 && (last == 0 || s.free < last))
			last = s.free
		} else {
			clear(sizes)
			last = 0
		}
		pause = min(guardLater, max(guardSoon, time.Duration(float64(spare)/diskSpeed*float64(time.Second))))
	}
}

// growing is a session with its workspace.
type growing struct {
	s          *session
	size, more int64
}

// look measures the workspaces without a hard limit in which something runs and, with act,
// ends what runs in one of them.
func (m *Manager) look(before map[*session]int64, free, least int64, act bool) map[*session]int64 {
	var mu sync.Mutex
	var list []growing
	_ = each(m.all(""), func(s *session) error { // the function returns no error
		s.mu.Lock()
		writes := s.resolved.OwnWorkspace() && volumeOf(s.resolved) == "" && s.aliveLocked() && (s.execs > 0 || s.running > 0)
		s.mu.Unlock()
		if !writes {
			return nil
		}
		usage, err := s.m.workspaces.Measure(m.ctx, s.key.Tenant, s.key.ID)
		if err != nil {
			return nil // gone this moment, or nothing that can be compared
		}
		was, known := before[s]
		g := growing{s: s, size: usage.Bytes}
		if known {
			g.more = usage.Bytes - was
		}
		mu.Lock()
		defer mu.Unlock()
		list = append(list, g)
		return nil
	})
	after := make(map[*session]int64, len(list))
	for _, g := range list {
		after[g.s] = g.size
	}
	grown := slices.DeleteFunc(slices.Clone(list), func(g growing) bool { return g.more <= 0 })
	if len(grown) == 0 && free < least/2 {
		grown = list // what is deleted and still open, or in closed directories, is not seen
	}
	if !act || len(grown) == 0 || m.ctx.Err() != nil {
		return after
	}
	worst := slices.MaxFunc(grown, func(a, b growing) int { return cmp.Compare(a.size, b.size) })
	worst.s.endWriters(&diskError{dir: m.workspaces.Root(), size: worst.size, free: free, least: least})
	return after
}

// diskError says why what runs in a session was ended.
type diskError struct {
	dir               string
	size, free, least int64
}

func (e *diskError) Error() string {
	return fmt.Sprintf("its workspace has %s and grows, while %s of the %s that must stay free (min_free) are left in %s",
		engine.FormatSize(e.size), engine.FormatSize(e.free), engine.FormatSize(e.least), e.dir)
}

// limit is what a result names.
func (e *diskError) limit() string { return "min_free " + engine.FormatSize(e.least) }

// endWriters ends all commands and processes of the session because of cause.
func (s *session) endWriters(cause *diskError) {
	s.mu.Lock()
	for _, cancel := range s.commands {
		cancel(cause)
	}
	var live []engine.ManagedProcess
	for _, p := range s.processes {
		if p.live != nil && !p.ending && !p.record.State.Ended() {
			p.overDisk = cause
			live = append(live, p.live)
		}
	}
	s.mu.Unlock()
	s.m.report(s.key, "", "what runs in it is ended: "+cause.Error())
	_ = s.m.audit(system, s.key, audit.Entry{Action: "disk-quota", Decision: audit.Done, Reason: cause.Error(), Ends: true}) // to protect the log as well
	ctx, cancel := context.WithTimeout(s.m.ctx, closeTimeout)
	defer cancel()
	_ = each(live, func(l engine.ManagedProcess) error {
		_ = l.Control().Kill(ctx) // the next look tries again
		return nil
	})
}

// working is a context for a command, which ends with it and when the command is to be
// ended for others.
func (s *session) working(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	s.mu.Lock()
	if s.commands == nil {
		s.commands = map[int]context.CancelCauseFunc{}
	}
	s.lastCommand++
	number := s.lastCommand
	s.commands[number] = cancel
	s.mu.Unlock()
	return ctx, func() {
		s.mu.Lock()
		delete(s.commands, number)
		s.mu.Unlock()
		cancel(nil)
	}
}

// overDisk corrects the result of what the guard has ended.
func overDisk(res engine.Result, cause error) engine.Result {
	var full *diskError
	if errors.As(cause, &full) && res.ExitCode < 0 && res.Verdict != engine.BoxLost {
		res.Verdict, res.Limit = engine.DiskQuota, full.limit()
	}
	return res
}

// shareOf: a workspace without a hard limit of its own gets this part of the file system,
// where that costs nothing.
const shareOf = 4

// limitShare gives a workspace that is a directory a hard limit where the host can do that
// for directories, which is project quota. Elsewhere there is the guard.
func (s *session) limitShare(ctx context.Context) {
	m := s.m
	if m.options.Storage == nil || m.noShares.Load() || m.options.MinFree == 0 {
		return
	}
	have, err := m.freeSpace()
	if err == nil {
		limit := engine.Volume{Bytes: min(have.size/shareOf, engine.MaxVolumeBytes)}.WithDefaults()
		err = m.options.Storage.LimitDirectory(ctx, s.directory(), limit.Bytes, limit.Inodes)
	}
	if errors.Is(err, engine.ErrUnenforceable) {
		m.noShares.Store(true) // as long as this daemon runs
		m.log.Debug("workspaces have no hard limit unless one is asked for", "error", err)
		return
	}
	if err != nil {
		m.report(s.key, "", "limiting the workspace: "+err.Error()) // the guard looks after it
	}
}

// directory is the workspace of boxd's own.
func (s *session) directory() engine.Directory {
	return engine.Directory{Path: s.m.workspaces.Path(s.key.Tenant, s.key.ID), Within: s.m.workspaces.Root()}
}
