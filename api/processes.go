package api

import (
	"net/http"
	"slices"
	"syscall"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/relay"
	"github.com/boxd/boxd/session"
)

func (c *call) listProcesses(key session.Key) error {
	chosen, err := spec.ParseSelector(c.values["label"])
	if err != nil {
		return err
	}
	views, err := c.s.opt.Sessions.Processes(key)
	if err != nil {
		return err
	}
	views = slices.DeleteFunc(views, func(v session.ProcessView) bool { return !chosen.Matches(v.Labels) })
	list := apitypes.ProcessList{Processes: make([]apitypes.Process, len(views))}
	for i := range views {
		list.Processes[i] = processOf(&views[i])
		// A process that was removed meanwhile has no streams.
		if p, err := c.s.opt.Sessions.Process(key, views[i].ID); err == nil {
			addStreams(&list.Processes[i], p)
		}
	}
	return c.reply(http.StatusOK, list)
}

func (c *call) startProcess(key session.Key) error {
	var q apitypes.ProcessRequest
	if err := c.decode(&q); err != nil {
		return err
	}
	args, env, err := programOf(q.Argv, q.Shell, q.Env)
	if err != nil {
		return err
	}
	if q.Wait && q.Ready == nil {
		return &engine.FieldError{Field: "wait", Value: "true", Rule: "needs ready, which says what to wait for"}
	}
	v, err := c.s.opt.Sessions.Start(c.r.Context(), c.caller(), key, optionalRequest(q.Session), session.ProcessSpec{
		ID: q.ID, Args: args, Env: env, Dir: q.Cwd, MakeDir: q.Mkdir, User: q.User, TTY: (*engine.WindowSize)(q.TTY),
		ProcessSettings: session.ProcessSettings{
			History: int64(q.History), DropOldest: q.DropOldest, DropStderr: q.DropStderr, Memory: int64(q.Memory), Labels: q.Labels,
			Ready: q.Ready, Restart: q.Restart,
		},
	})
	if err != nil {
		return commandError(err, q.Argv)
	}
	if q.Wait {
		if v, err = c.waitReady(v); err != nil {
			return err
		}
	}
	return c.reply(http.StatusCreated, processOf(&v))
}

// waitReady waits until the process of v is ready.
func (c *call) waitReady(v session.ProcessView) (session.ProcessView, error) {
	ctx, cancel := c.untilStopped()
	defer cancel()
	p, err := c.s.opt.Sessions.Process(v.Session, v.ID)
	if err == nil {
		p, err = p.WaitReady(ctx)
	}
	if err != nil {
		return v, err
	}
	return p.View(), nil
}

// getProcess answers with the process and the bounds of its kept output.
func (c *call) getProcess(p *session.Process) error {
	v := p.View()
	answer := processOf(&v)
	addStreams(&answer, p)
	return c.reply(http.StatusOK, answer)
}

// addStreams adds the bounds of the kept output of p.
func addStreams(answer *apitypes.Process, p *session.Process) {
	if live := p.Live(); live != nil {
		io := live.Stdio()
		answer.Stdout, answer.Stderr = streamOf(io.Stdout), streamOf(io.Stderr)
	}
}

func streamOf(o engine.Output) *apitypes.Stream {
	if o == nil {
		return nil
	}
	oldest, end := o.Bounds()
	return &apitypes.Stream{Oldest: oldest, End: end}
}

func (c *call) removeProcess(p *session.Process) error {
	if err := p.Remove(c.r.Context(), c.caller()); err != nil {
		return err
	}
	return c.empty()
}

func (c *call) stopProcess(p *session.Process) error {
	var q apitypes.StopRequest
	if c.r.ContentLength != 0 { // the body is optional
		if err := c.decode(&q); err != nil {
			return err
		}
	}
	var o session.StopOptions
	if q.Grace != nil {
		if *q.Grace < 0 {
			return &engine.FieldError{Field: "grace", Value: q.Grace.D().String(), Rule: "must not be negative"}
		}
		o.Grace = max(q.Grace.D(), 1) // 0 would mean the server's default
	}
	if err := p.Stop(c.r.Context(), c.caller(), o); err != nil {
		return err
	}
	return c.getProcess(p)
}

func (c *call) signalProcess(p *session.Process) error {
	var q apitypes.SignalRequest
	if err := c.decode(&q); err != nil {
		return err
	}
	sig, ok := linux.ParseSignal(q.Signal)
	if !ok {
		return &engine.FieldError{Field: "signal", Value: spec.Quote(q.Signal), Rule: "must be the name of a signal, or 1 to 64"}
	}
	live, err := running(p)
	if err != nil {
		return err
	}
	if err := p.Note(c.caller(), string(relay.ActSignal), signalDetails(sig)); err != nil {
		return err
	}
	if err := live.Control().Signal(sig); err != nil {
		return err
	}
	p.Touch()
	return c.empty()
}

func signalDetails(sig syscall.Signal) map[string]any {
	return map[string]any{"signal": linux.SignalName(sig)}
}

// running returns the engine's process of p, if it can be acted on.
func running(p *session.Process) (engine.ManagedProcess, error) {
	v := p.View()
	live := p.Live()
	switch {
	case v.State.Ended():
		return nil, refuse(apitypes.CodeProcessEnded, "", "process %s: has ended", spec.Quote(v.ID))
	case v.State == session.ProcessRestarting:
		return nil, refuse(apitypes.CodeNotStarted, "", "process %s: does not run: it is restarted in %s; try again then, or stop it",
			spec.Quote(v.ID), max(0, time.Until(v.RestartAt)).Round(100*time.Millisecond))
	case live == nil:
		return nil, refuse(apitypes.CodeNotStarted, "", "process %s: is being started; try again", spec.Quote(v.ID))
	}
	return live, nil
}
