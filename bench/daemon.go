package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/bench/report"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/test/daemon"
)

const daemonExecTarget = 1.6 // times bare

// served is a daemon and its client.
type served struct {
	*daemon.Daemon
	client *client.Client
}

// serve runs a daemon for one section, with additional arguments. The caller calls end.
func (b *bench) serve(args ...string) (*served, error) {
	dir, err := os.MkdirTemp("", "boxd-bench-")
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(dir, 0o711); err != nil {
		return nil, err
	}
	d, err := daemon.Start(daemon.Config{
		Boxd: b.boxd, Init: b.init, Dir: dir, Runtime: filepath.Join(b.scratch, filepath.Base(dir)),
		Args: append([]string{"--stop-sessions"}, args...),
	})
	if err != nil {
		return nil, err
	}
	c, err := d.Client()
	return &served{d, c}, errors.Join(err)
}

func (s *served) end() error {
	s.client.Close()
	return errors.Join(s.Stop(), os.RemoveAll(s.Dir))
}

// withDaemon measures with a new daemon.
func (b *bench) withDaemon(measure func(*served) error) {
	s, err := b.serve()
	if err == nil {
		err = errors.Join(measure(s), s.end())
	}
	if err != nil {
		b.fail(b.current, err)
	}
}

// ensure creates persistent sessions.
func (s *served) ensure(ctx context.Context, id string) error {
	return s.ensureWith(ctx, id, spec.LiveWishes{})
}

// ensureWith is ensure with limits.
func (s *served) ensureWith(ctx context.Context, id string, w spec.LiveWishes) error {
	w.Persistent = new(true)
	_, err := s.client.Ensure(ctx, apitypes.SessionRequest{ID: id, SessionSpec: apitypes.SessionSpec{LiveWishes: w}})
	return err
}

// exec runs the command of all rows in a session.
func (s *served) exec(ctx context.Context, session string) error {
	r, err := s.client.Exec(ctx, session, apitypes.ExecRequest{Argv: []string{command}})
	if err == nil && (r.Status != 0 || r.Recreated) {
		err = fmt.Errorf("running %q in %s: %+v", command, session, r)
	}
	return err
}

// daemonExec measures commands through the daemon's Unix socket.
func (b *bench) daemonExec(ctx context.Context) {
	const what = "exec over the daemon's socket"
	b.withDaemon(func(s *served) error {
		for i := range clients {
			if err := s.ensure(ctx, sessionName(i)); err != nil {
				return err
			}
		}
		const free = "all-processors"
		if err := s.ensureWith(ctx, free, spec.LiveWishes{CPUs: new(processors())}); err != nil {
			return err
		}
		one, err := b.alternate(b.n, timed(bare), timed(func() error { return s.exec(ctx, sessionName(0)) }))
		if err != nil {
			return err
		}
		g := goal{fmt.Sprintf("≤ %.1f × bare", daemonExecTarget), ratio(one[1], one[0]) <= daemonExecTarget}
		b.times("exec.daemon", what, one[1], one[0], "", g)
		many, err := b.alternate(max(b.n/20, 5),
			together(clients, func(int) error { return bare() }),
			together(clients, func(int) error { return s.exec(ctx, sessionName(0)) }),
			together(clients, func(i int) error { return s.exec(ctx, sessionName(i)) }),
			together(clients, func(int) error { return s.exec(ctx, free) }))
		if err != nil {
			return err
		}
		label := fmt.Sprintf("execs/s over the daemon's socket, %d clients", clients)
		b.rate("rate.daemon4", label+", one session", many[1], many[0], rateGoal(many[1], daemonRateTarget))
		b.rate("rate.daemon4-sessions", fmt.Sprintf("%s, %d sessions", label, clients), many[2], many[0], rateGoal(many[2], daemonRateTarget))
		b.rate("rate.daemon4-free", label+", one session with all processors", many[3], many[0], rateGoal(many[3], daemonRateTarget))
		return nil
	})
}

func sessionName(i int) string { return fmt.Sprintf("bench-%d", i) }

// crowdSizes are the number of idle sessions, and of sessions that are created at once.
const (
	crowd       = 1000
	rush        = 100
	crowdRSS    = 60 << 20
	crowdTime   = 5 * time.Second  // for creating them all
	idleWindow  = 20 * time.Second // in which the processor time of an idle daemon is measured
	statusGoal  = 5 * time.Millisecond
	readyTarget = time.Second // of a start after SIGKILL
	rushTarget  = 2.0         // times the same exec without the rush
)

// crowded measures a daemon with many sessions.
func (b *bench) crowded(ctx context.Context) {
	what := fmt.Sprintf("%d idle sessions", crowd)
	b.withDaemon(func(s *served) error {
		began := time.Now()
		if err := atOnce(crowd, 8, func(i int) error { return s.ensure(ctx, sessionName(i)) }); err != nil {
			return err
		}
		took := time.Since(began)
		b.times("crowd.create", what+", creating all", series{took}, nil, "", goal{"≤ 5 s", took <= crowdTime})
		rss, err := residentSet(s.PID())
		if err != nil {
			return err
		}
		b.value("crowd.memory", what+", RSS of the daemon", report.Bytes, float64(rss), 0, "", goal{"≤ 60 MiB", rss <= crowdRSS})
		if err := b.idleTime(what, s); err != nil {
			return err
		}
		status, err := b.alternate(max(b.n/2, 10), timed(func() error { _, err := s.client.Status(ctx); return err }))
		if err != nil {
			return err
		}
		b.times("crowd.status", "status with "+what, status[0], nil, "", goal{"≤ 5 ms", status[0].p50() <= statusGoal})
		return b.killed(ctx, what, s)
	})
}

// killed measures the starts of a daemon that was killed, with the sessions that it had.
func (b *bench) killed(ctx context.Context, what string, s *served) error {
	var ready, first, all series
	for range 5 {
		if err := s.Kill(); err != nil {
			return err
		}
		began := time.Now()
		if err := s.Start(); err != nil {
			return err
		}
		ready = append(ready, time.Since(began))
		if err := s.exec(ctx, sessionName(crowd-1)); err != nil {
			return err
		}
		first = append(first, time.Since(began))
		err := atOnce(crowd, clients, func(i int) error { _, err := s.client.Session(ctx, sessionName(i)); return err })
		if err != nil {
			return err
		}
		all = append(all, time.Since(began))
	}
	b.times("crowd.ready", what+", from the start after SIGKILL to READY=1", ready, nil, "", goal{"≤ 1 s", ready.p50() <= readyTarget})
	b.times("crowd.ready.exec", "… to the first exit of a command in one of them", first, nil, "", goal{})
	b.times("crowd.ready.all", "… to an answer from each of them", all, nil, "", goal{})
	return nil
}

// idleTime measures the processor time of an idle daemon. The kernel counts in ticks of
// 10 ms.
func (b *bench) idleTime(what string, s *served) error {
	before, err := processorTime(s.PID())
	if err != nil {
		return err
	}
	select {
	case <-time.After(idleWindow):
	case <-b.ctx.Done():
		return b.ctx.Err()
	}
	after, err := processorTime(s.PID())
	if err != nil {
		return err
	}
	share := float64(after-before) / float64(idleWindow) * 100
	b.value("crowd.idle", what+", processor of the daemon", report.Percent, share, 0, "", goal{"≤ 0.1 %", share <= 0.1})
	return nil
}

// rushed measures an exec in one session while many others are created.
func (b *bench) rushed(ctx context.Context) {
	what := fmt.Sprintf("exec while %d sessions are created at once", rush)
	b.withDaemon(func(s *served) error {
		if err := s.ensure(ctx, "calm"); err != nil {
			return err
		}
		one := timed(func() error { return s.exec(ctx, "calm") })
		quiet, err := b.alternate(b.n, one)
		if err != nil {
			return err
		}
		made := make(chan error, 1)
		go func() {
			made <- atOnce(rush, rush, func(i int) error { return s.ensure(ctx, sessionName(i)) })
		}()
		var busy series
		for {
			select {
			case err := <-made:
				if err != nil {
					return err
				}
				g := goal{fmt.Sprintf("≤ %.0f × without", rushTarget), ratio(busy, quiet[0]) <= rushTarget}
				b.times("rush.exec", what, busy, quiet[0], "without the rush", g)
				return nil
			default:
			}
			d, err := one()
			if err != nil {
				return errors.Join(err, <-made)
			}
			busy = append(busy, d)
		}
	})
}
