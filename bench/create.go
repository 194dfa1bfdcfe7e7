package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native"
)

// coldCreate measures boxes from their creation to their first exit, and their removal. The
// launcher is already running.
func (b *bench) coldCreate(ctx context.Context) {
	const what = "create a box, to the first exit"
	var made, removed series
	cycle := func() (time.Duration, error) {
		begin := time.Now()
		box, err := b.engine.Create(ctx, b.spec())
		if err != nil {
			return 0, err
		}
		made = append(made, time.Since(begin))
		if err := execTrue(ctx, box); err != nil {
			return 0, err
		}
		exit := time.Since(begin)
		err = box.Remove(ctx)
		removed = append(removed, time.Since(begin)-exit)
		return exit, err
	}
	s, err := b.alternate(max(b.n/4, 5), timed(bare), cycle)
	if err != nil {
		b.fail("create", err)
		return
	}
	const target = 8
	b.times("create.cold", what, s[1], s[0], "", goal{
		fmt.Sprintf("≤ %d ms", target), s[1].p50() <= time.Duration(target)*time.Millisecond,
	})
	b.times("create.alone", "create a box, alone", made[len(made)-len(s[1]):], s[0], "", goal{})
	b.times("create.remove", "remove a box", removed[len(removed)-len(s[1]):], s[0], "", goal{})
	if err := b.birth(ctx); err != nil {
		b.fail("create.steps", err)
	}
}

// poolCreate measures boxes of the pool from the request to their first exit.
func (b *bench) poolCreate(ctx context.Context) {
	var made series
	s, err := b.firstOfPool(ctx, b.spec(), &made, execTrue)
	if err != nil {
		b.fail("create.pool", err)
		return
	}
	b.times("create.pool", "create a box from the pool, to the first exit", s[1], s[0], "", goal{"≤ 3 × bare", s[1].p50() <= 3*s[0].p50()})
	b.times("create.pool.alone", "create a box from the pool, alone", made[len(made)-len(s[1]):], s[0], "", goal{})
	b.poolSession(ctx)
}

// firstOfPool measures boxes of spec from the request to the end of first, a command in the box, beside a bare fork
// and exec. The pool has a box ready each time, as it has unless requests come faster than idle processors build boxes. made
// gets how long each box took.
func (b *bench) firstOfPool(ctx context.Context, spec engine.Spec, made *series, first func(context.Context, engine.Box) error) ([]series, error) {
	e, err := native.Start(ctx, native.Options{InitPath: b.init, StateDir: b.stateDir(), Pool: 1})
	if err != nil {
		return nil, err
	}
	defer e.Close()
	for range 2 { // so that such boxes are in demand
		box, err := e.Create(ctx, spec)
		if err == nil {
			err = box.Remove(ctx)
		}
		if err != nil {
			return nil, err
		}
	}
	return b.alternate(max(b.n/10, 5), timed(bare), func() (time.Duration, error) {
		if err := awaitBlank(func() (int, error) { s, err := e.Pool(ctx); return s.Ready, err }); err != nil {
			return 0, err
		}
		before, err := e.Pool(ctx)
		if err != nil {
			return 0, err
		}
		begin := time.Now()
		box, err := e.Create(ctx, spec)
		if err != nil {
			return 0, err
		}
		*made = append(*made, time.Since(begin))
		if err := first(ctx, box); err != nil {
			return 0, errors.Join(err, box.Remove(ctx))
		}
		exit := time.Since(begin)
		if after, err := e.Pool(ctx); err != nil || after.Hits != before.Hits+1 {
			return 0, errors.Join(fmt.Errorf("the box is not of the pool: %+v", after), err)
		}
		return exit, box.Remove(ctx)
	})
}

// poolSession measures new sessions over the daemon's socket, from the command that creates one to its exit, while the
// pool has a box each time.
func (b *bench) poolSession(ctx context.Context) {
	const what = "exec in a new session over the daemon's socket, from the pool"
	err := os.Setenv("BOXD_POOL", "1")
	if err != nil {
		b.fail("create.pool.daemon", err)
		return
	}
	defer os.Unsetenv("BOXD_POOL")
	b.withDaemon(func(d *served) error {
		fresh := func(session string) error {
			r, err := d.client.Exec(ctx, session, apitypes.ExecRequest{Argv: []string{command}, Session: &apitypes.SessionSpec{}})
			if err == nil && r.Status != 0 {
				err = fmt.Errorf("running %q in %s: %+v", command, session, r)
			}
			return err
		}
		for _, session := range []string{"first", "second"} { // so that such boxes are in demand
			if err := fresh(session); err != nil {
				return err
			}
		}
		n := 0
		s, err := b.alternate(max(b.n/10, 5), timed(bare), func() (time.Duration, error) {
			n++
			took, err := d.fromPool(ctx, func() error { return fresh(sessionName(n)) })
			return took, errors.Join(err, d.client.Remove(ctx, sessionName(n)))
		})
		if err != nil {
			return err
		}
		b.times("create.pool.daemon", what, s[1], s[0], "", goal{"≤ 5 × bare", s[1].p50() <= 5*s[0].p50()})
		return nil
	})
}

// fromPool waits until the pool has a box, and returns how long f takes, which must use it.
func (s *served) fromPool(ctx context.Context, f func() error) (time.Duration, error) {
	var before int64
	err := awaitBlank(func() (int, error) {
		state, err := s.client.Status(ctx)
		if err != nil || state.Pool == nil {
			return 0, err
		}
		before = state.Pool.Hits
		return state.Pool.Ready, nil
	})
	if err != nil {
		return 0, err
	}
	took, err := timed(f)()
	if err != nil {
		return 0, err
	}
	state, err := s.client.Status(ctx)
	if err == nil && state.Pool.Hits != before+1 {
		err = errors.New("the box is not of the pool")
	}
	return took, err
}

// awaitBlank waits until the pool has a box. ready returns how many it has.
func awaitBlank(ready func() (int, error)) error {
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(25 * time.Millisecond) {
		if n, err := ready(); err != nil || n > 0 {
			return err
		}
	}
	return errors.New("the pool is empty after a minute")
}

// liveMount measures attaching mounts to a running box and detaching them.
func (b *bench) liveMount(ctx context.Context) {
	const what = "attach a mount to a running box"
	source := filepath.Join(b.mountDir(), "source")
	defer os.RemoveAll(filepath.Dir(source))
	if err := os.MkdirAll(source, 0o755); err != nil {
		b.fail("create", err)
		return
	}
	box, err := b.engine.Create(ctx, b.spec())
	if err != nil {
		b.fail("create", err)
		return
	}
	defer box.Remove(ctx)
	m := engine.Mount{Source: source, Target: "/mnt/bench"}
	attach := func() error { return box.Update(ctx, engine.Change{Attach: []engine.Mount{m}}) }
	detach := func() error { return box.Update(ctx, engine.Change{Detach: []string{m.Target}}) }
	if err := attach(); err != nil {
		b.skip("mount.attach", what, "not here: "+err.Error())
		return
	}
	if err := detach(); err != nil {
		b.fail("create", err)
		return
	}
	s, err := b.alternate(b.n/2, timed(bare), timed(attach), timed(detach))
	if err != nil {
		b.fail("create", err)
		return
	}
	b.times("mount.attach", what, s[1], s[0], "", goal{})
	b.times("mount.detach", "detach a mount from a running box", s[2], s[0], "", goal{})
}

// mountDir is outside of /run and the other trees that are never mounted.
func (b *bench) mountDir() string { return filepath.Join("/var/tmp", filepath.Base(b.scratch)) }
