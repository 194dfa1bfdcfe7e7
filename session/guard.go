package session

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
)

// The guard keeps boxes from filling the disk of all where workspaces have no hard limit.
// While less than Options.MinFree is free and it gets less, the guard ends the commands and
// processes of the session that takes most, and then looks again. It ends a session for what
// this session takes, never for the size of its workspace, and only while sessions account
// for a fair share of the loss (culprit): a program of the host that fills the disk costs no
// session its commands. It deletes nothing, and refuses nothing: whoever has files there can
// remove them.
//
// Two measures find who takes. The growth of a workspace is exact, but does not show unlinked
// files that are still open, nor what is in directories that the daemon cannot read. What
// the processes of a box have written to disks (engine.Usage.Written) shows both, but also
// counts what takes nothing, such as pages that are written again, and not what fallocate(2)
// reserves. So the growth decides where it explains the loss, and else what was written.

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
	g := guard{m: m}
	failing := false
	for pause := guardSoon; ; {
		select {
		case <-m.ctx.Done():
			return
		case <-time.After(pause):
		}
		have, err := m.freeSpace()
		if err != nil && !failing {
			m.report(Key{}, "", "looking for the free space of workspaces: "+err.Error())
		}
		if failing = err != nil; failing {
			pause = guardLater
			continue
		}
		least := have.size / 100 * int64(m.options.MinFree)
		spare := have.free - least
		if spare < least { // early enough that it is known who takes
			g.look(have.free, least)
		} else {
			g = guard{m: m}
		}
		pause = min(guardLater, max(guardSoon, time.Duration(float64(spare)/diskSpeed*float64(time.Second))))
	}
}

// guard is what the guard knows from its last look.
type guard struct {
	m        *Manager
	looked   bool // there was one
	free     int64
	lost     int64 // what the disk lost lately
	lastLost int64 // in the last look
	takers   map[*session]taker
	foreign  int64 // of what was lost, what no session took
	reported bool  // that something else fills the disk
}

// fade makes old figures count less with each look: by a sixteenth, so that they stand for
// about 1.6 s.
func fade(n int64) int64 { return n * 15 / 16 }

// noise is the loss in that time that ends nobody: at this rate, 160 KiB/s, a gigabyte takes
// almost two hours, and it may well be boxd's own log.
const noise = 256 << 10

// taker is a session with what it takes.
type taker struct {
	s             *session
	size, written int64 // of the workspace, -1 if it was not measured; by processes
	grew, wrote   flow
	active        bool // it grew or wrote since the look before the last
}

// flow is bytes that a session wrote, as far as the disk lost them.
type flow struct {
	lately int64
	rest   int64 // of the last look, for which the disk had lost nothing by then
}

// next is f one look later, with more bytes written, while the disk lost most bytes in this
// look and the last. What exceeds that took no space: it was written in place, for one.
func (f flow) next(more, most int64) flow {
	more = max(more, 0)
	due := more + f.rest
	counts := min(due, most)
	return flow{lately: counts + fade(f.lately), rest: min(more, due-counts)}
}

// look measures the sessions without a hard limit and, below least, ends what runs in one.
func (g *guard) look(free, least int64) {
	var lost int64
	if g.looked {
		lost = max(g.free-free, 0)
	}
	takers := g.measure(lost + g.lastLost)
	if g.m.ctx.Err() != nil {
		return
	}
	g.free, g.takers, g.looked = free, takers, true
	g.lost, g.lastLost = lost+fade(g.lost), lost
	if free >= least || lost == 0 {
		return
	}
	var worst *session
	var took int64
	if g.lost >= min(noise, least/100) {
		worst, took = culprit(slices.Collect(maps.Values(takers)), g.lost)
	}
	if worst == nil {
		if g.foreign += lost; g.foreign >= least/10 && !g.reported {
			g.reported = true
			g.m.report(Key{}, "", fmt.Sprintf("%s of the %s that must stay free (min_free) are left in %s, and no session is seen to take much of it: something else fills the disk",
				spec.FormatSize(free), spec.FormatSize(least), g.m.workspaces.Root()))
		}
		return
	}
	worst.endWriters(&diskError{dir: g.m.workspaces.Root(), took: took, free: free, least: least})
	// What is lost until they have ended is not the doing of the others.
	g.lost = 0
	for s, t := range takers {
		t.grew, t.wrote = flow{}, flow{}
		takers[s] = t
	}
}

// culprits is the part of the loss, one in so many, that sessions must account for before
// one of them is ended.
const culprits = 4

// culprit is the session to end for a loss: the one that takes most, if all that take
// account for a quarter of the loss together. All together, for many may take little each.
func culprit(list []taker, lost int64) (worst *session, took int64) {
	for _, bytes := range []func(taker) int64{
		func(t taker) int64 { return t.grew.lately },
		func(t taker) int64 { return t.wrote.lately },
	} {
		var sum int64
		for _, t := range list {
			if n := bytes(t); n > 0 {
				sum += n
				if n > took && t.active {
					worst, took = t.s, n
				}
			}
		}
		if worst != nil && sum >= lost/culprits {
			return worst, took
		}
		worst, took = nil, 0
	}
	return nil, 0
}

// measure looks at all sessions whose workspace has no hard limit. The disk lost most bytes
// in this look and the last.
func (g *guard) measure(most int64) map[*session]taker {
	var mu sync.Mutex
	now := map[*session]taker{}
	_ = each(g.m.all(""), func(s *session) error { // the function returns no error
		s.mu.Lock()
		soft := s.resolved.OwnWorkspace() && volumeOf(s.resolved) == "" && s.aliveLocked()
		runs := s.execs > 0 || s.running > 0 || len(s.commands) > 0
		box := s.box
		s.mu.Unlock()
		if !soft || box == nil {
			return nil
		}
		was, known := g.takers[s]
		t := taker{s: s, size: -1, written: was.written}
		// Without a figure, such as of a box that has just gone, there is the workspace.
		if usage, err := box.Usage(); err == nil && usage.Written != nil {
			t.written = *usage.Written
		}
		var grew, wrote int64
		if known {
			wrote = t.written - was.written
		}
		if runs || wrote > 0 {
			if usage, err := g.m.workspaces.Measure(g.m.ctx, s.key.Tenant, s.key.ID); err == nil {
				t.size = usage.Bytes
			}
		}
		if known && was.size >= 0 && t.size >= 0 {
			grew = t.size - was.size
		}
		t.active = max(grew, wrote, was.grew.rest, was.wrote.rest) > 0
		t.grew, t.wrote = was.grew.next(grew, most), was.wrote.next(wrote, most)
		mu.Lock()
		defer mu.Unlock()
		now[s] = t
		return nil
	})
	return now
}

// diskError says why what runs in a session was ended. It is a policy.ErrQuota.
type diskError struct {
	dir               string
	took, free, least int64
}

func (e *diskError) Error() string {
	return fmt.Sprintf("it has just written %s, more than the others, while %s of the %s that must stay free (min_free) are left in %s",
		spec.FormatSize(e.took), spec.FormatSize(e.free), spec.FormatSize(e.least), e.dir)
}

func (e *diskError) Is(target error) bool { return target == policy.ErrQuota }

// limit is what a result names.
func (e *diskError) limit() string { return "min_free " + spec.FormatSize(e.least) }

// killTime is how long commands and processes have to end before their box is removed.
const killTime = time.Second

// endWriters ends all commands and processes of the session because of cause. If all of them
// were ended before, and killTime is over, what writes was left behind by a command
// (KeepBackground) or does not end: then the box is removed. The next use makes a new one.
func (s *session) endWriters(cause *diskError) {
	s.mu.Lock()
	ended := len(s.commands) > 0
	for number, cancel := range s.commands {
		cancel(cause)
		delete(s.commands, number)
	}
	var live []engine.ManagedProcess
	for _, p := range s.processes {
		if p.live != nil && !p.ending && !p.record.State.Ended() {
			ended = ended || p.overDisk == nil
			p.overDisk = cause
			live = append(live, p.live)
		}
	}
	box := s.box
	if now := s.m.now(); ended {
		s.overDiskUntil = now + killTime
		box = nil
	} else if now < s.overDiskUntil {
		box = nil
	}
	s.mu.Unlock()
	if ended || box != nil {
		what := "what runs in it is ended: "
		if box != nil {
			what = "its box is removed, for something in it goes on writing: "
		}
		s.m.report(s.key, "", what+cause.Error())
		_ = s.m.audit(system, s.key, audit.Entry{Action: "disk-quota", Decision: audit.Done, Reason: cause.Error(), Ends: true}) // to protect the log as well
	}
	ctx, cancel := context.WithTimeout(s.m.ctx, closeTimeout)
	defer cancel()
	_ = each(live, func(l engine.ManagedProcess) error {
		_ = l.Control().Kill(ctx) // the next look tries again
		return nil
	})
	if box != nil {
		_ = box.Remove(ctx) // watch takes apart what is left
		s.lost(box)
	}
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
		m.log.Debug("workspaces have no hard limit unless one is requested", "error", err)
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
