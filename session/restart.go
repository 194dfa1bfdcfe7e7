package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/diskroom"
	"github.com/boxd/boxd/policy"
)

// Bounds of restarts.
const (
	firstBackOff = time.Second // before the first restart; doubled for each further one
	lastBackOff  = time.Minute
	// forgiven is how long a process must have run for its earlier restarts not to count.
	forgiven = 10 * time.Minute
	// maxWaiting is how many processes of a session may wait for their restart.
	maxWaiting = 64
	// maxKeptCommand bounds, in bytes, the command line and environment of a process that are
	// kept for its probes and restarts.
	maxKeptCommand = 64 << 10
	// failureOutput is how much of the end of its output is kept with a failure.
	failureOutput = 4 << 10
)

// backOff returns the pause before a restart, after n in a row.
func backOff(n int) time.Duration { return min(firstBackOff<<min(n, 16), lastBackOff) }

// keptCommand is what the record of a process has of its spec so that the process can be
// started again, and its probing command run.
type keptCommand struct {
	Args          []string           `json:"args"`
	Env           []string           `json:"env,omitempty"`
	Dir           string             `json:"dir,omitempty"`
	MakeDir       bool               `json:"mkdir,omitempty"`
	User          *engine.User       `json:"user,omitempty"`
	TTY           *engine.WindowSize `json:"tty,omitempty"`
	StderrHistory int64              `json:"stderr_history,omitempty"`
}

// keep returns the part of spec that a record keeps; nil if nothing will need it.
func (p *ProcessSpec) keep() *keptCommand {
	if p.Restart == "" && (p.Ready == nil || len(p.Ready.Command) == 0) {
		return nil
	}
	return &keptCommand{p.Args, p.Env, p.Dir, p.MakeDir, p.User, p.TTY, p.StderrHistory}
}

// spec returns the spec with which a process was started, if its record keeps that.
func (r *processRecord) spec() ProcessSpec {
	p := ProcessSpec{ID: r.ID, ProcessSettings: r.ProcessSettings}
	if k := r.Kept; k != nil {
		p.Args, p.Env, p.Dir, p.MakeDir, p.User, p.TTY, p.StderrHistory = k.Args, k.Env, k.Dir, k.MakeDir, k.User, k.TTY, k.StderrHistory
	}
	return p
}

// validateSupervision checks Ready and Restart, and that what they need is short enough to be
// kept.
func (p *ProcessSpec) validateSupervision() error {
	if _, err := spec.ParseRestart(p.Restart); err != nil {
		return err
	}
	size := 0
	lists := [][]string{p.Args, p.Env}
	if p.Ready != nil {
		if err := p.Ready.Validate(); err != nil {
			return err
		}
		lists = append(lists, p.Ready.Command)
	}
	for _, list := range lists {
		for _, arg := range list {
			size += len(arg) + 1
		}
	}
	if p.keep() != nil && size > maxKeptCommand {
		return &engine.FieldError{Field: "argv", Value: fmt.Sprintf("%d bytes with env and ready.command", size),
			Rule: fmt.Sprintf("must be up to %d bytes with restart or ready.command, which keep them: put them into a file", maxKeptCommand)}
	}
	return nil
}

// validateSupervision checks what a record has for probes and restarts.
func (r *processRecord) validateSupervision() error {
	switch {
	case !slices.Contains([]ProcessState{"", ProcessReady, ProcessUnready}, r.Readiness):
		return fmt.Errorf("unknown readiness %q", r.Readiness)
	case !r.RestartAt.IsZero() && !r.State.Ended():
		return fmt.Errorf("is to be restarted, and has not ended")
	case r.Kept != nil && len(r.Kept.Args) == 0:
		return fmt.Errorf("its command was not kept")
	}
	p := r.spec()
	if r.Kept == nil && (!r.RestartAt.IsZero() || !r.State.Ended() && p.keep() != nil) {
		return fmt.Errorf("its command was not kept")
	}
	return p.validateSupervision()
}

// failureOf says why the end of a process is a failure; "" if it is none. Only processes with
// Ready or Restart can fail. The caller holds s.mu.
func (p *Process) failureOf(res engine.Result) string {
	r := &p.record
	switch {
	case r.Ready == nil && r.Restart == "" || p.stopped || p.s.removing:
		return ""
	case p.failure != "" && res.Verdict != engine.BoxLost:
		return p.failure
	case r.Ready != nil && r.Readiness == "":
		return endText(res) + " before it was ready"
	case res.Verdict == engine.Exited && res.ExitCode == 0:
		return ""
	}
	return endText(res)
}

// lastOutput returns the end of what a process has written for people: of stderr, or else of
// stdout.
func lastOutput(streams engine.Stdio) string {
	for _, o := range []engine.Output{streams.Stderr, streams.Stdout} {
		if o == nil {
			continue
		}
		if text := strings.ToValidUTF8(string(Tail(o, failureOutput)), "\uFFFD"); strings.TrimSpace(text) != "" {
			return text
		}
	}
	return ""
}

// planRestart sets in end when the process is started again, if it is. The caller holds s.mu.
func (p *Process) planRestart(end *processRecord) {
	most, _ := spec.ParseRestart(end.Restart) // was checked
	if end.Failure == "" || most == 0 || end.Result.Verdict == engine.BoxLost {
		return
	}
	if end.EndedAt.Sub(end.StartedAt) >= forgiven {
		end.Restarts = 0
	}
	switch {
	case end.Restarts >= most:
		end.Failure += fmt.Sprintf("; given up after %d of %d restarts", end.Restarts, most)
	case p.s.waiting >= maxWaiting:
		end.Failure += fmt.Sprintf("; not restarted, because %d processes of the session wait for that already", maxWaiting)
	default:
		end.RestartAt = time.Now().Add(backOff(end.Restarts)).Round(0)
	}
}

// restart starts a process again that has ended, at its time. It gives up if the box is lost,
// after too many attempts, and if somebody stops, removes or replaces the process.
func (p *Process) restart() {
	defer close(p.restarted)
	s := p.s
	for {
		s.mu.Lock()
		at := p.record.RestartAt
		s.mu.Unlock()
		if at.IsZero() {
			return
		}
		timer := time.NewTimer(max(firstProbe, min(time.Until(at), lastBackOff))) // the clock may have been set back
		select {
		case <-timer.C:
		case <-p.gone:
		case <-s.ctx.Done():
		}
		timer.Stop()
		if isDone(p.gone) || s.ctx.Err() != nil {
			return
		}
		s.awaitResumed(p.gone)
		err := p.startAgain(s.ctx)
		switch {
		case err == nil:
			return
		case s.ctx.Err() != nil: // a successor of the manager goes on
			return
		case errors.Is(err, errSuperseded): // perhaps by a start that fails
		case errors.Is(err, engine.ErrBoxLost), errors.Is(err, ErrNotFound):
			p.abandonRestart("; not restarted: its box is lost")
			return
		default:
			p.restartFailed(err)
		}
	}
}

// errSuperseded: the ID of a process belongs to another one, or its restart was cancelled.
var errSuperseded = errors.New("it is not to be restarted any more")

// startAgain starts a process again that has ended.
func (p *Process) startAgain(ctx context.Context) error {
	s := p.s
	// startProcess, which checks the same, would audit each refusal, every minute.
	if err := cmp.Or(s.m.checkBudget(s.key.Tenant), s.checkWorkspace(ctx)); err != nil {
		return err
	}
	found, _, err := s.m.lookup(s.key, nil)
	if err != nil {
		return err
	}
	u := found.quietUse() // or else a process that fails for ever would keep the session
	if u == nil {
		s.m.wg.Done()
		return engine.ErrBoxLost
	}
	defer u.release()
	if found != s || u.box.ID() != p.View().Box { // the next box starts empty
		return engine.ErrBoxLost
	}
	if err := u.awaitRecord(); err != nil {
		return err
	}
	s.mu.Lock()
	again := p.record.spec()
	s.mu.Unlock()
	_, err = s.m.startProcess(ctx, system, u, again, p)
	return err
}

// saysNothing reports whether err, which a start returned, is about the tenant or the host and not about the
// process.
func saysNothing(err error) bool {
	return errors.Is(err, policy.ErrQuota) || errors.Is(err, engine.ErrNoLauncher) || errors.Is(err, engine.ErrNoEngine) || errors.Is(err, engine.ErrPaused) || diskroom.IsFull(err) || isShortage(err)
}

// restartFailed counts an attempt that failed, unless the failure says nothing about the process, and
// plans the next one.
func (p *Process) restartFailed(err error) {
	s := p.s
	s.mu.Lock()
	if s.processes[p.id] != p || p.record.RestartAt.IsZero() || p.halted || s.removing {
		s.mu.Unlock()
		return
	}
	pause := lastBackOff
	most, _ := spec.ParseRestart(p.record.Restart)
	p.record.Failure = cut("starting it again: " + err.Error())
	if !saysNothing(err) {
		p.record.Restarts++
		pause = backOff(p.record.Restarts)
	}
	if p.record.Restarts >= most {
		s.mu.Unlock()
		p.abandonRestart(fmt.Sprintf("; given up after %d of %d restarts", most, most))
		return
	}
	p.record.RestartAt = time.Now().Add(pause).Round(0)
	write := s.m.store.enqueue(p.record.put())
	s.mu.Unlock()
	if err := write.wait(); err != nil {
		s.m.report(s.key, p.id, "recording a failed restart: "+err.Error())
	}
}

// abandonRestart is noRestart, retried until it is recorded.
func (p *Process) abandonRestart(reason string) {
	p.s.m.retry(func(context.Context) error { return p.noRestart(reason) })
}

// noRestart cancels the restart of a process, if there is one to come, once that is recorded,
// and adds the reason to its failure. After an error the restart is still to come.
func (p *Process) noRestart(reason string) error {
	s := p.s
	s.mu.Lock()
	if p.record.RestartAt.IsZero() || s.processes[p.id] != p || s.erased {
		s.mu.Unlock()
		return nil
	}
	p.halted = true
	end := p.record
	end.RestartAt, end.Kept, end.Failure = time.Time{}, nil, end.Failure+reason
	write := s.m.store.enqueue(end.put())
	s.mu.Unlock()
	err := write.wait()
	s.mu.Lock()
	p.halted = false
	over := err == nil && !p.record.RestartAt.IsZero()
	if over {
		p.record = end
		s.countWaitingLocked()
	}
	s.mu.Unlock()
	if over {
		p.returnReservation()
		s.touch() // as at the end of any process
	}
	if err == nil {
		s.arm()
	}
	return err
}

// takeReservation returns the reservation in quotas with which a process id of s waits for its
// restart, for another process that takes its place, or makes one. The process is nil without one.
func (s *session) takeReservation(id string) (release func(), from *Process, err error) {
	s.mu.Lock()
	if p := s.processes[id]; p != nil && p.reserved != nil {
		release, p.reserved = p.reserved, nil
		s.mu.Unlock()
		return release, p, nil
	}
	s.mu.Unlock()
	release, err = s.m.ledger.Reserve(s.key.Tenant, policy.Use{Processes: 1})
	return release, nil, err
}

// giveBack undoes takeReservation.
func (s *session) giveBack(release func(), to *Process) {
	s.mu.Lock()
	if to != nil && s.processes[to.id] == to && !to.record.RestartAt.IsZero() && to.reserved == nil {
		to.reserved, release = release, func() {}
	}
	s.mu.Unlock()
	release()
}

// returnReservation gives up the reservation of a process that is not to be restarted any more.
func (p *Process) returnReservation() {
	p.s.mu.Lock()
	release := p.reserved
	p.reserved = nil
	p.s.mu.Unlock()
	if release != nil {
		release()
	}
}

// countWaitingLocked counts the processes that wait for their restart.
func (s *session) countWaitingLocked() {
	s.waiting = 0
	for _, p := range s.processes {
		if !p.record.RestartAt.IsZero() {
			s.waiting++
		}
	}
}

// latest returns the process that runs after the restarts of p.
func (p *Process) latest() *Process {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	for p.successor != nil {
		p = p.successor
	}
	return p
}

// shownState returns the state of a process for its users, who see more of them than the
// rest of this package.
func (r *processRecord) shownState() ProcessState {
	switch {
	case !r.RestartAt.IsZero():
		return ProcessRestarting
	case r.State == ProcessRunning && r.Ready != nil:
		return cmp.Or(r.Readiness, ProcessStarting)
	}
	return r.State
}
