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

// The guard keeps boxes from filling the shared disk if workspaces have no hard limit.
// While less than Options.MinFree is free and the free space shrinks, the guard ends the
// commands and processes of the session that takes the most space, and then checks again.
// It judges a session by the space it is taking, never by the size of its workspace, and
// acts only while sessions account for a fair share of the loss (culpritShare): if a program
// of the host fills the disk, no session loses its commands. It deletes and refuses nothing,
// so users can still remove their files.
//
// Two measures find the session. The growth of a workspace is exact, but misses unlinked
// files that are still open, and directories that the daemon cannot read. The bytes that the
// processes of a box have written to disks (engine.Usage.Written) include both, but also
// writes that take no space, such as rewritten pages, and miss what fallocate(2) reserves.
// So the growth decides if it explains the loss, and otherwise the bytes written.

// How often the guard looks: within the time that a fast disk needs to fill the spare space.
const (
	guardSoon  = 100 * time.Millisecond
	guardLater = 5 * time.Second
	diskSpeed  = 4 << 30 // bytes per second
)

// space is the size and the free space of the workspaces' file system, in bytes.
type space struct{ free, size int64 }

// freeSpace returns the space that unprivileged users may still take.
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
		if spare < least { // early enough to know who takes the space when it is short
			g.look(have.free, least)
		} else {
			g = guard{m: m}
		}
		pause = min(guardLater, max(guardSoon, time.Duration(float64(spare)/diskSpeed*float64(time.Second))))
	}
}

// guard holds what the guard knows from its last look.
type guard struct {
	m        *Manager
	looked   bool // there was a last look
	free     int64
	lost     int64 // recent loss of free space; see fade
	lastLost int64 // loss in the last look
	takers   map[*session]taker
	foreign  int64 // loss that no session accounts for
	reported bool  // that something else fills the disk
}

// fade makes old figures count for a sixteenth less with each look, so that a sum of them
// stands for about 1.6 s.
func fade(n int64) int64 { return n * 15 / 16 }

// noise is the loss in that time up to which the guard does not act: at this rate, 160
// KiB/s, a gigabyte takes almost two hours, and boxd's own log may well be the cause.
const noise = 256 << 10

// taker is a session and the space that it takes.
type taker struct {
	s           *session
	size        int64 // of the workspace; -1 if it was not measured
	written     int64 // by the processes of the box, since it was created
	grew, wrote flow
	active      bool // it grew or wrote since the look before the last
}

// flow is how many bytes a session wrote, as far as the disk lost them.
type flow struct {
	lately int64
	rest   int64 // written in the last look, before the disk had lost them
}

// next is f one look later, with more bytes written, if the disk lost most bytes in this
// look and the last. Anything above that took no space, for example because it was written
// in place.
func (f flow) next(more, most int64) flow {
	more = max(more, 0)
	due := more + f.rest
	counts := min(due, most)
	return flow{lately: counts + fade(f.lately), rest: min(more, due-counts)}
}

// look measures the sessions without a hard limit. If less than least is free, it ends what
// runs in one of them.
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
			g.m.report(Key{}, "", fmt.Sprintf("only %s of the %s that must stay free (min_free) are left in %s, and no session takes much: something else fills the disk",
				spec.FormatSize(free), spec.FormatSize(least), g.m.workspaces.Root()))
		}
		return
	}
	worst.endWriters(&diskError{dir: g.m.workspaces.Root(), took: took, free: free, least: least})
	// Do not blame the other sessions for what this one writes until it has ended.
	g.lost = 0
	for s, t := range takers {
		t.grew, t.wrote = flow{}, flow{}
		takers[s] = t
	}
}

// culpritShare is the part of the loss, as 1/culpritShare, that sessions must account for
// before the guard ends the commands of one.
const culpritShare = 4

// culprit returns the session that takes the most space, if all sessions together account
// for enough of the loss. All together, because many may take little each.
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
		if worst != nil && sum >= lost/culpritShare {
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
	_ = inParallel(g.m.all(""), func(s *session) error { // fn returns no error
		s.mu.Lock()
		soft := s.record.Resolved.OwnWorkspace() && volumeOf(s.record.Resolved) == "" && s.aliveLocked()
		runs := s.execs > 0 || s.running > 0 || len(s.commands) > 0
		box := s.box
		s.mu.Unlock()
		if !soft || box == nil {
			return nil
		}
		was, known := g.takers[s]
		t := taker{s: s, size: -1, written: was.written}
		// Without this figure, for example of a box that has just ended, the size counts.
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

// diskError says why the guard ended what ran in a session. It is a policy.ErrQuota.
type diskError struct {
	dir               string
	took, free, least int64
}

func (e *diskError) Error() string {
	return fmt.Sprintf("it has just written %s, more than any other session, and only %s of the %s that must stay free (min_free) are left in %s",
		spec.FormatSize(e.took), spec.FormatSize(e.free), spec.FormatSize(e.least), e.dir)
}

func (e *diskError) Is(target error) bool { return target == policy.ErrQuota }

// limit names the limit in a result.
func (e *diskError) limit() string { return "min_free " + spec.FormatSize(e.least) }

// killTime is how long commands and processes may take to end before their box is removed.
const killTime = time.Second

// endWriters ends all commands and processes of the session because of cause. If all of
// them were ended before, and killTime has passed, the writer was left behind by a command
// (KeepBackground) or does not end. Then endWriters removes the box; the next use builds a
// new one.
func (s *session) endWriters(cause *diskError) {
	s.mu.Lock()
	ended := len(s.commands) > 0
	for _, cancel := range s.commands {
		cancel(cause)
	}
	clear(s.commands)
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
		what := "its commands and processes are ended: "
		if box != nil {
			what = "its box is removed, because something in it keeps writing: "
		}
		s.m.report(s.key, "", what+cause.Error())
		// The kill protects the log's own disk too, so it does not depend on this entry.
		_ = s.m.audit(system, s.key, audit.Entry{Action: "disk-quota", Decision: audit.Done, Reason: cause.Error(), Ends: true})
	}
	ctx, cancel := context.WithTimeout(s.m.ctx, closeTimeout)
	defer cancel()
	_ = inParallel(live, func(l engine.ManagedProcess) error {
		_ = l.Control().Kill(ctx) // the next look tries again
		return nil
	})
	if box != nil {
		_ = box.Remove(ctx) // watch removes the rest
		s.markLost(box)
	}
}

// commandContext returns a context for one command, which the guard can end. The caller
// calls the function that it returns when the command has ended.
func (s *session) commandContext(ctx context.Context) (context.Context, context.CancelFunc) {
	command, cancel := context.WithCancelCause(ctx)
	s.mu.Lock()
	if s.commands == nil {
		s.commands = map[context.Context]context.CancelCauseFunc{}
	}
	s.commands[command] = cancel
	s.mu.Unlock()
	return command, func() {
		s.mu.Lock()
		delete(s.commands, command)
		s.mu.Unlock()
		cancel(nil)
	}
}

// diskQuotaResult returns res with the verdict disk-quota if the guard ended the command.
func diskQuotaResult(res engine.Result, cause error) engine.Result {
	if full, ok := errors.AsType[*diskError](cause); ok && res.ExitCode < 0 && res.Verdict != engine.BoxLost {
		res.Verdict, res.Limit = engine.DiskQuota, full.limit()
	}
	return res
}

// workspaceShare is the part of the file system, as 1/workspaceShare, that limitShare
// leaves to a workspace without a hard limit of its own.
const workspaceShare = 4

// limitShare gives a workspace that is a directory a hard limit, on hosts that can limit a
// directory at no cost, by project quota. On other hosts only the guard bounds it.
func (s *session) limitShare(ctx context.Context) {
	m := s.m
	if m.options.Storage == nil || m.noShares.Load() || m.options.MinFree == 0 {
		return
	}
	have, err := m.freeSpace()
	if err == nil {
		limit := engine.Volume{Bytes: min(have.size/workspaceShare, engine.MaxVolumeBytes)}.WithDefaults()
		err = m.options.Storage.LimitDirectory(ctx, s.directory(), limit.Bytes, limit.Inodes)
	}
	if errors.Is(err, engine.ErrUnenforceable) {
		m.noShares.Store(true) // for the lifetime of this daemon
		m.log.Debug("workspaces have no hard limit unless one is requested", "error", err)
		return
	}
	if err != nil {
		m.report(s.key, "", "limiting the workspace: "+err.Error()) // the guard bounds it
	}
}

// directory names the workspace directory that boxd keeps for the session.
func (s *session) directory() engine.Directory {
	return engine.Directory{Path: s.m.workspaces.Path(s.key.Tenant, s.key.ID), Within: s.m.workspaces.Root()}
}
