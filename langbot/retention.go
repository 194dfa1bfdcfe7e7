package langbot

import (
	"cmp"
	"context"
	"slices"
	"time"
)

// watch waits for the end of a process, and forgets the process some time later.
func (s *Server) watch(ctx context.Context, p *process) {
	select {
	case <-p.live.Done():
	case <-p.gone:
		return
	case <-ctx.Done():
		return
	}
	keep := s.completed(p)
	timer := time.NewTimer(keep)
	defer timer.Stop()
	select {
	case <-timer.C:
		s.expel(ctx, p)
	case <-p.gone:
	case <-ctx.Done():
	}
}

// completed notes how a process ended, forgets older ones of its instance if there are too many,
// and returns how long to keep it.
func (s *Server) completed(p *process) time.Duration {
	end := endOf(p.live)
	s.mu.Lock()
	p.end = end
	limits := s.settingsLocked(p.b.at.Instance).limits
	var ended []*process
	for _, b := range s.boxes {
		for _, other := range b.processes {
			if other.end != nil && b.at.Instance == p.b.at.Instance {
				ended = append(ended, other)
			}
		}
	}
	s.mu.Unlock()
	slices.SortFunc(ended, func(x, y *process) int { // latest first
		return -cmp.Or(x.end.at.Compare(y.end.at), cmp.Compare(x.id, y.id))
	})
	size := 0
	for i, old := range ended {
		if size += old.size(); int64(i) >= limits.MaxCompletedProcesses || size > maxEnded {
			s.background(func(ctx context.Context) { s.expel(ctx, old) })
		}
	}
	return time.Until(end.at.Add(time.Duration(limits.CompletedRetentionSec) * time.Second))
}

// maxEnded bounds the memory, in bytes, for the ended processes of an instance. The usual number
// of processes fits with the longest possible previews.
const maxEnded = 4 << 20

// size estimates the memory that an ended process takes.
func (p *process) size() int {
	n := len(p.id) + len(p.Command) + len(p.Cwd) + len(p.end.preview)
	for _, list := range [][]string{p.Args, p.EnvKeys} {
		for _, s := range list {
			n += len(s) + 16
		}
	}
	return n
}

// expel forgets an ended process, unless it was replaced or removed already.
func (s *Server) expel(ctx context.Context, p *process) {
	unlock, err := s.ops.LockContext(ctx, processName(p.b, p.id))
	if err != nil {
		return // closing
	}
	defer unlock()
	if q, err := s.processOf(p.b, p.id); err != nil || q != p {
		return
	}
	if err := s.stop(ctx, s.self(), p); err != nil && ctx.Err() == nil {
		s.log.Warn("forgetting a process that has ended", "session", p.b.physical, "process", p.id, "error", err)
		s.dropProcess(p)
	}
}
