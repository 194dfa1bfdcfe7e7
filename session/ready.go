package session

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/headtail"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/policy"
	"github.com/boxd/boxd/session/history"
)

// Pauses and bounds of probes.
const (
	firstProbe   = 50 * time.Millisecond // pause after the first attempt; it grows up to lastProbe
	lastProbe    = time.Second
	probeTimeout = 5 * time.Second // of one attempt
	portShare    = 20              // a probe looks at ports for at most this part of the time, as 1/portShare
	liveFailures = 3               // in a row until a process is unready
	// lineDrain is how long after the end of a process its output is searched for the line.
	lineDrain = time.Second
	// probeOutput is how much of what a probe hears is read, and of what a command says shown.
	probeAnswer = 16 << 10
	probeShown  = 512
)

// probe follows a process with Ready until it ends: until it is ready, and from then on every
// LiveEvery. It returns soon after the end of the process, and before that end is recorded.
func (p *Process) probe() {
	defer close(p.probed)
	s := p.s
	s.mu.Lock()
	r, live, box := p.record, p.live, s.box
	s.mu.Unlock()
	if box == nil || box.ID() != r.Box {
		return // it was lost, and the process with it
	}
	ctx, cancel := context.WithCancel(s.m.ctx)
	defer cancel()
	s.m.spawn(func() {
		select {
		case <-live.Done():
		case <-ctx.Done():
			return
		}
		if r.Ready.Line != "" { // all of its output is there, and may not have been read
			select {
			case <-time.After(lineDrain):
			case <-ctx.Done():
			}
		}
		cancel()
	})
	if r.Readiness == "" {
		switch err := p.awaitReady(ctx, box, live, r.Ready); {
		case err == nil:
			p.setReadiness(ProcessReady, nil)
		case ctx.Err() != nil, isDone(live.Done()):
			return
		default:
			p.giveUp(fmt.Sprintf("not ready within %s: %v", readyTimeout(r.Ready), err))
			return
		}
	}
	if r.Ready.LiveEvery > 0 {
		p.watchLive(ctx, box, &r)
	}
}

func readyTimeout(r *spec.Ready) time.Duration {
	return cmp.Or(r.Timeout.D(), spec.DefaultReadyTimeout)
}

// awaitReady returns nil once the process is ready, and the last failure when its time is
// over. The time counts from the start, also over a restart of the daemon and while the launcher
// is away; the time that is left then allows for one attempt.
func (p *Process) awaitReady(ctx context.Context, box engine.LiveBox, live engine.ManagedProcess, r *spec.Ready) error {
	most := readyTimeout(r)
	left := max(min(most, most-time.Since(p.View().StartedAt)), min(most, probeTimeout))
	var last error
	end := time.Now().Add(left)
	for pause := firstProbe; ; pause = min(2*pause, lastProbe) {
		stood := p.s.stoodStill()
		p.s.awaitResumed(ctx.Done())
		began := time.Now()
		attempt, cancel := context.WithDeadline(ctx, end.Add(p.s.stoodStill()-stood))
		var err error
		if r.Line != "" {
			err = awaitLine(attempt, live, r.Line)
		} else {
			err = p.try(attempt, box, r)
		}
		complete := attempt.Err() == nil
		cancel()
		if r.Line != "" && err != nil && complete { // the process has ended
			return err
		}
		if paused := p.s.stoodStill() - stood; paused > 0 { // a failure says nothing about the process, whose time stood still
			end = end.Add(paused)
			if err != nil && ctx.Err() == nil {
				err = fmt.Errorf("%w: %w", engine.ErrPaused, err)
			}
		}
		switch {
		case err == nil:
			return nil
		case errors.Is(err, engine.ErrPaused):
			last = cmp.Or(last, err)
		case errors.Is(err, engine.ErrNoLauncher): // says nothing about the process, which gets another attempt
			last, end = err, later(end, time.Now().Add(min(most, probeTimeout)))
		case complete || last == nil: // an attempt that was cut says less than the one before
			last = err
		}
		if r.Port != 0 { // a box with many sockets has long tables
			pause = max(pause, portShare*time.Since(began))
		}
		select {
		case <-ctx.Done():
			return last
		case <-time.After(min(pause, time.Until(end))):
		}
		if !time.Now().Before(end) {
			return last
		}
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// watchLive probes a process that was ready, until ctx ends or the process is given up.
func (p *Process) watchLive(ctx context.Context, box engine.LiveBox, r *processRecord) {
	pause := r.Ready.LiveEvery.D()
	for failures := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		p.s.awaitResumed(ctx.Done())
		began, stood := time.Now(), p.s.stoodStill()
		err := p.try(ctx, box, r.Ready)
		if err != nil && p.s.stoodStill() > stood {
			err = fmt.Errorf("%w: %w", engine.ErrPaused, err)
		}
		if r.Ready.Port != 0 { // as in awaitReady
			pause = max(r.Ready.LiveEvery.D(), portShare*time.Since(began))
		}
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			failures = 0
			p.setReadiness(ProcessReady, nil)
			continue
		case errors.Is(err, engine.ErrNoLauncher) || errors.Is(err, engine.ErrPaused) || errors.Is(err, policy.ErrQuota): // says nothing about the process
			continue
		}
		if failures++; failures < liveFailures {
			continue
		}
		if r.Restart != "" {
			p.giveUp(fmt.Sprintf("not live, %d probes in a row failed: %v", failures, err))
			return
		}
		p.setReadiness(ProcessUnready, err)
	}
}

// setReadiness records and publishes whether the process is ready, if that is new.
func (p *Process) setReadiness(to ProcessState, why error) {
	s := p.s
	s.mu.Lock()
	if p.record.Readiness == to || p.stopped || p.ending || p.record.State.Ended() {
		s.mu.Unlock()
		return
	}
	first := p.record.Readiness == ""
	p.record.Readiness = to
	if first {
		p.record.ReadyAt = time.Now().Round(0)
		p.record.Failure, p.record.FailureOutput = "", "" // of the run before
	}
	box, took := p.record.Box, p.record.ReadyAt.Sub(p.record.StartedAt)
	write := s.m.store.enqueue(p.record.put())
	s.mu.Unlock()
	if err := write.wait(); err != nil {
		s.m.report(s.key, p.id, "recording its readiness: "+err.Error()) // a successor probes again
	}
	kind, details := EventProcessReady, map[string]any{}
	if first {
		details["after"] = took.Seconds()
	}
	if why != nil {
		kind = EventProcessUnready
		details["reason"] = cut(why.Error())
	}
	s.m.publish(p.event(kind, system, box, details))
	if first {
		close(p.ready)
	}
}

// giveUp ends a process because of a probe. recordEnd says why, and decides about a restart.
func (p *Process) giveUp(failure string) {
	s := p.s
	s.mu.Lock()
	if p.stopped || p.ending || p.record.State.Ended() {
		s.mu.Unlock()
		return
	}
	p.failure = failure
	s.mu.Unlock()
	s.m.spawn(func() {
		_ = s.m.audit(system, s.key, audit.Entry{Action: "stop", Process: p.id, Decision: audit.Allow, Reason: failure, Ends: true}) // reported
		p.terminate(s.m.options.StopGrace)
	})
}

// try probes once. The error is for people.
func (p *Process) try(ctx context.Context, box engine.LiveBox, r *spec.Ready) error {
	switch {
	case r.Port != 0:
		return listening(box, r.Port)
	case r.HTTP != "":
		return p.tryHTTP(ctx, box, r)
	}
	p.s.mu.Lock()
	full, ground := p.record.spec(), p.s.groundLocked()
	p.s.mu.Unlock()
	answer, err := p.ask(ctx, box, history.ProbeCommand, engine.Command{
		Args: r.Command, Env: ground.environ(full.Env), Dir: ground.workDir(full.Dir), User: full.User,
	})
	if text := strings.TrimSpace(strings.ToValidUTF8(string(answer), "")); err != nil && text != "" {
		err = fmt.Errorf("%w: %s", err, text[:min(len(text), probeShown)])
	}
	return err
}

// listening returns nil if something in box listens on a TCP port, as the kernel says.
func listening(box engine.LiveBox, port int) error {
	ports, err := box.Ports()
	if err == nil && !slices.ContainsFunc(ports, func(l engine.Port) bool { return l.Port == port && strings.HasPrefix(l.Protocol, "tcp") }) {
		err = fmt.Errorf("nothing listens on TCP port %d", port)
	}
	return err
}

// tryHTTP asks for a path by a command in the box, because only there is its network.
func (p *Process) tryHTTP(ctx context.Context, box engine.LiveBox, r *spec.Ready) error {
	port, path, err := r.Address()
	if err != nil {
		return err
	}
	request := fmt.Sprintf("GET %s HTTP/1.0\r\nHost: localhost:%d\r\nUser-Agent: boxd-probe\r\nAccept: */*\r\nConnection: close\r\n\r\n", path, port)
	answer, err := p.ask(ctx, box, history.ProbeHTTP, engine.Command{Builtin: engine.BuiltinDial, Args: []string{strconv.Itoa(port)}, Dir: "/", Stdin: strings.NewReader(request)})
	status, bad := httpStatus(answer)
	switch {
	case bad == nil && status >= 200 && status < 400: // even if the server kept the connection open
		return nil
	case bad == nil:
		return fmt.Errorf("GET %s on port %d: status %d", path, port, status)
	case err == nil:
		return fmt.Errorf("GET %s on port %d: %w", path, port, bad)
	case len(answer) > 0:
		return fmt.Errorf("GET %s on port %d: %s", path, port, strings.TrimSpace(strings.ToValidUTF8(string(answer[:min(len(answer), probeShown)]), "")))
	}
	return fmt.Errorf("GET %s on port %d: %w", path, port, err)
}

// httpStatus returns the status of an answer whose body may be cut.
func httpStatus(answer []byte) (int, error) {
	resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(answer)), nil)
	if err != nil {
		return 0, fmt.Errorf("no HTTP answer: %w", err)
	}
	resp.Body.Close()
	return resp.StatusCode, nil
}

// ask runs a command of a probe. It returns what the command has written, its beginning and its
// end, and an error unless it has exited with 0. It does not count as use of the session, but what
// it uses counts for the tenant, whose budget may refuse it.
func (p *Process) ask(ctx context.Context, box engine.LiveBox, kind history.Probe, cmd engine.Command) ([]byte, error) {
	if err := p.s.m.checkBudget(p.s.key.Tenant); err != nil {
		return nil, err
	}
	ctx, ended := p.s.commandContext(ctx)
	defer ended()
	out := headtail.Buffer{Limit: probeAnswer}
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.Timeout, cmd.Grace, cmd.OutputLimit = probeTimeout, time.Millisecond, 1<<20
	started := time.Now()
	res, err := engine.Run(ctx, box, cmd)
	if res.Verdict != "" { // or else it did not run
		p.rememberProbe(kind, box.ID(), started, res)
	}
	answer, _ := out.Bytes()
	switch {
	case err != nil:
		return answer, err
	case res.Verdict == engine.Exited && res.ExitCode == 0:
		return answer, nil
	}
	return answer, errors.New(endText(res))
}

// endText says how a command ended, for people.
func endText(r engine.Result) string {
	switch {
	case r.Verdict == engine.Exited:
		return fmt.Sprintf("exited with %d", r.ExitCode)
	case r.Verdict == engine.Signaled:
		return "ended by " + linux.SignalName(r.Signal)
	case r.Limit != "":
		return fmt.Sprintf("ended: %s (%s)", r.Verdict, r.Limit)
	}
	return fmt.Sprintf("ended: %s", r.Verdict)
}

// awaitLine returns nil once one of the outputs has text in a line. It starts at the oldest
// byte that is kept, and lets the process overwrite nothing.
func awaitLine(ctx context.Context, live engine.ManagedProcess, text string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var outputs []engine.Output
	for _, o := range []engine.Output{live.Stdio().Stdout, live.Stdio().Stderr} {
		if o != nil {
			outputs = append(outputs, o)
		}
	}
	found := make(chan bool, len(outputs))
	for _, o := range outputs {
		go func() { found <- hasText(ctx, o, text) }()
	}
	seen := false
	for range outputs { // each ends with ctx
		if <-found {
			seen = true
			cancel()
		}
	}
	if seen {
		return nil
	}
	select { // its time is not over, as long as it runs
	case <-live.Done():
	case <-ctx.Done():
	}
	return fmt.Errorf("no line of its output contains %s", spec.Quote(text))
}

// hasText reads an output until it has text, which has no line break, or until the output or
// ctx ends.
func hasText(ctx context.Context, o engine.Output, text string) bool {
	off, _ := o.Bounds()
	buf := make([]byte, 0, 32<<10)
	for {
		n, at, err := o.ReadAt(ctx, buf[len(buf):cap(buf)], off)
		if at > off {
			buf = append(buf[:0], buf[len(buf):len(buf)+n]...) // bytes in between are gone
		} else {
			buf = buf[:len(buf)+n]
		}
		if bytes.Contains(buf, []byte(text)) {
			return true
		}
		if err != nil {
			return false
		}
		off = at + int64(n)
		if len(buf) == cap(buf) { // it writes a lot: 32 MiB/s are read at most
			select {
			case <-time.After(time.Millisecond):
			case <-ctx.Done():
				return false
			}
		}
		keep := min(len(buf), len(text)-1)
		buf = append(buf[:0], buf[len(buf)-keep:]...)
	}
}

// NotReadyError says why a process did not become ready. It matches ErrNotReady.
type NotReadyError struct {
	ID      string
	Failure string
	Output  string // the end of what it had written
}

func (e *NotReadyError) Error() string {
	return fmt.Sprintf("process %s did not become ready: %s", spec.Quote(e.ID), e.Failure)
}

// Is makes every NotReadyError an ErrNotReady.
func (e *NotReadyError) Is(target error) bool { return target == ErrNotReady }

// WaitReady waits until a process is ready, and returns it: another one than p if it was
// restarted meanwhile. If it ends before that for good, the error is a *[NotReadyError].
// A process without Ready is ready at once.
func (p *Process) WaitReady(ctx context.Context) (*Process, error) {
	for {
		s := p.s
		s.mu.Lock()
		r, next, restarted := p.record, p.successor, p.restarted
		running := next != nil && isDone(next.up) // or else it may not run after all
		s.mu.Unlock()
		var wait <-chan struct{}
		switch {
		case r.Readiness != "" || r.Ready == nil:
			return p, nil
		case running:
			p = next
			continue
		case next != nil:
			wait = next.up
		case !r.State.Ended():
			wait = p.done
		case !r.RestartAt.IsZero() && !isDone(restarted):
			wait = restarted
		default:
			return nil, &NotReadyError{ID: p.id, Failure: cmp.Or(r.Failure, "it was stopped, removed or replaced"), Output: r.FailureOutput}
		}
		select {
		case <-p.ready:
		case <-wait:
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting until process %s is ready (it goes on): %w", spec.Quote(p.id), context.Cause(ctx))
		case <-s.m.ctx.Done():
			return nil, ErrClosed
		}
	}
}
