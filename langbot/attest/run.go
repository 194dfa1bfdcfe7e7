package attest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/oneline"
)

// Limits of the probe box, and the demands that exceed them.
const (
	memory    = 32 << 20
	hogBlock  = "64M" // the size of the buffer that dd fills
	pids      = 32
	forks     = 64
	cpus      = 0.1   // 10 ms of processor time, then a wait of 90 ms
	spins     = 40000 // 15 to 40 ms of processor time
	spinTime  = 500 * time.Millisecond
	maxOutput = 1 << 20
)

// experiment is a measurement in progress. Each of its steps fills in checks.
type experiment struct {
	ctx     context.Context
	control *control
	quotas  *quotas
	box     engine.LiveBox
	// readOnly means that the box has no writable root, because this host cannot provide one.
	readOnly bool
	checks   map[string]Check
}

// run creates the probe box, experiments with it and removes everything again.
func (p *Prober) run(ctx context.Context, where Places) (r Report) {
	began := time.Now()
	c, err := newControl(p.o.Scratch)
	defer c.close()
	if err != nil {
		return Unmeasured(reason("not measured: no control: %v", err))
	}
	q := p.makeQuotas(ctx, where)
	defer p.afterwards(ctx, q.remove, "removing the storage of the probe box")
	box, readOnly, err := p.create(ctx, q)
	if err != nil {
		r := Unmeasured(reason("not measured: no probe box: %v", err))
		if ctx.Err() != nil || errors.Is(err, engine.ErrNoLauncher) {
			r = late(r)
		}
		return r
	}
	defer p.afterwards(ctx, box.Remove, "removing the probe box "+box.ID())
	e := &experiment{ctx: ctx, control: c, quotas: q, box: box, readOnly: readOnly, checks: make(map[string]Check)}
	for _, step := range []func() error{e.namespaces, e.mounts, e.network, e.ephemeral, e.inodes, e.storage, e.cgroup} {
		if err := step(); err != nil {
			p.o.Logger.Warn("measuring what the host guarantees", "error", err)
		}
	}
	r = Report{Checks: e.checks}
	if ctx.Err() != nil {
		r = late(r)
	}
	p.o.Logger.Debug("measured what the host guarantees", "took", time.Since(began), "false", r.Failed())
	return r
}

// afterwards removes something, with time of its own because ctx may have ended.
func (p *Prober) afterwards(ctx context.Context, remove func(context.Context) error, what string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTime)
	defer cancel()
	if err := remove(ctx); err != nil {
		p.o.Logger.Warn(what, "error", err)
	}
}

// create creates the probe box: with the storage if that can be mounted, and with a writable root
// if this host can provide one.
func (p *Prober) create(ctx context.Context, q *quotas) (box engine.LiveBox, readOnly bool, err error) {
	box, err = p.createWith(ctx, q, true)
	if err == nil || ctx.Err() != nil {
		return box, false, err
	}
	if box, e := p.createWith(ctx, q, false); e == nil {
		return box, true, nil
	}
	return nil, false, err
}

func (p *Prober) createWith(ctx context.Context, q *quotas, writable bool) (engine.LiveBox, error) {
	spec := engine.Spec{
		WritableRoot: writable, TmpSize: tmpSize, Mounts: q.mounts,
		Limits: engine.Limits{Memory: memory, PIDs: pids, CPUs: 1},
		Labels: map[string]string{"boxd.attest": "probe"},
	}
	if writable {
		spec.UpperSize = upperSize
	}
	box, err := p.o.Engine.Create(ctx, spec)
	if err == nil || len(q.mounts) == 0 || ctx.Err() != nil {
		return box, err
	}
	with := err
	spec.Mounts = nil
	if box, err = p.o.Engine.Create(ctx, spec); err != nil {
		return nil, err
	}
	q.workspace, q.skills = cmp.Or(q.workspace, with), cmp.Or(q.skills, with)
	return box, nil
}

// pass and fail set a check.
func (e *experiment) pass(name string) { e.checks[name] = Check{OK: true} }

func (e *experiment) fail(name, format string, a ...any) {
	e.checks[name] = Check{Reason: reason(format, a...)}
}

// failed fails checks that could not be measured, and returns the error.
func (e *experiment) failed(err error, names ...string) error {
	for _, name := range names {
		e.fail(name, "not measured: %v", err)
	}
	return err
}

// reason formats one line of at most 300 characters.
func reason(format string, a ...any) string {
	s := oneline.Fold(fmt.Sprintf(format, a...))
	if r := []rune(s); len(r) > 300 {
		s = string(r[:300]) + "…"
	}
	return s
}

// command runs args in the box.
func (e *experiment) command(limit time.Duration, args ...string) (engine.Result, string, error) {
	var out strings.Builder
	r, err := engine.Run(e.ctx, e.box, engine.Command{
		Args: args, Env: []string{"LC_ALL=C"}, Dir: "/", Stdout: &out, OutputLimit: maxOutput, Timeout: limit,
	})
	return r, out.String(), err
}

// script runs one of our scripts and returns what it printed.
func (e *experiment) script(script string, args ...any) (facts, error) {
	command := []string{"sh", "-c", script, "sh"}
	for _, a := range args {
		command = append(command, fmt.Sprint(a))
	}
	r, out, err := e.command(measureTime, command...)
	if err != nil {
		return nil, err
	}
	if r.Verdict != engine.Exited {
		return nil, fmt.Errorf("a command of the probe box ended with verdict %s", r.Verdict)
	}
	return parseFacts(out), nil
}

// facts is the output of a script: values by key, in their order.
type facts map[string][]string

func parseFacts(out string) facts {
	f := make(facts)
	for line := range strings.Lines(out) {
		if k, v, ok := strings.Cut(strings.TrimRight(line, "\n"), "="); ok {
			f[k] = append(f[k], strings.TrimSpace(v))
		}
	}
	return f
}

// first returns the first value of a key, "" if there is none.
func (f facts) first(key string) string {
	if len(f[key]) == 0 {
		return ""
	}
	return f[key][0]
}

// errEnd means that a script did not reach its end.
var errEnd = errors.New("a command of the probe box broke off")

// numbers returns the numbers after name in the values of key.
func (f facts) numbers(key, name string) []int64 {
	for _, v := range f[key] {
		fields := strings.Fields(v)
		if len(fields) < 2 || fields[0] != name {
			continue
		}
		var all []int64
		for _, field := range fields[1:] {
			n, err := strconv.ParseInt(field, 10, 64)
			if err != nil {
				return nil
			}
			all = append(all, n)
		}
		return all
	}
	return nil
}
