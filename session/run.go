package session

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
)

// A run is a session for one command: it is made for the command, and removed afterwards. It has what a
// box has without preparations, so nothing of it is on disk: no record, no workspace, no volume. A
// successor of this process finds its box without an owner, and removes it.

// RunProfile is the profile of a run that names none.
const RunProfile = policy.RunProfile

// maxTidying bounds the runs that have been answered and are still being removed. Above it, a run is
// removed before its answer if that takes no longer than tidyPatience, so that a client that runs commands in a loop does not outrun the removals.
const maxTidying = 8

// tidyPatience bounds how long an answer waits for the removal of its run, and a run for those of runs before it.
const tidyPatience = 3 * time.Second

// runWishes are what a run may ask for, by their names in Go.
var runWishes = []string{"Profile", "Image", "Engine", "Isolation", "Require", "WritableRoot", "TmpSize", "UpperSize", "User", "Env", "Hostname", "Name", "Labels"}

// AdmitRun decides whether tenant may have the run of r and e, which [Manager.Run] gets next, and counts it in the rates
// of commands. It makes nothing and reserves nothing: Run may still find a quota full. ctx bounds the waiting.
func (m *Manager) AdmitRun(ctx context.Context, c Caller, tenant string, r policy.Request, e *Exec) error {
	checked := *e
	key, a, err := m.resolveRun(c, tenant, r, &checked)
	if err != nil {
		return err
	}
	if err := m.admitStart(c, key, a); err != nil {
		return err
	}
	release, err := m.reserveBox(ctx, tenant, a)
	if err != nil {
		m.deny(c, key, "create", err)
		return err
	}
	release()
	e.admitted = true
	return nil
}

// Run runs one command in a new box and removes the box, in the background unless many are being
// removed. The box is exactly what r asks for, and otherwise what a box has by default
// ([spec.Spec.WithDefaults]): its profile decides what is allowed, and changes nothing. A timeout of 0 is none.
func (m *Manager) Run(ctx context.Context, c Caller, tenant string, r policy.Request, e Exec) (ExecResult, error) {
	key, a, err := m.resolveRun(c, tenant, r, &e)
	if err != nil {
		return ExecResult{}, err
	}
	if err := m.enter(); err != nil {
		return ExecResult{}, err
	}
	defer m.wg.Done()
	defer m.endRun(c, key)
	out, err := m.exec(ctx, c, key, a, e)
	if err == nil && out.Verdict == engine.BoxLost && m.isRemoving(key) {
		out.Verdict = engine.Canceled // the end of its box came before the signal to the command
	}
	return out, err
}

// isRemoving reports whether somebody removes session key, or has removed it.
func (m *Manager) isRemoving(key Key) bool {
	s, err := m.find(key)
	if err != nil {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.removing
}

// resolveRun decides about a run, and completes e.
func (m *Manager) resolveRun(c Caller, tenant string, r policy.Request, e *Exec) (Key, *asked, error) {
	if err := m.checkCommand(*e); err != nil {
		return Key{}, nil, err
	}
	if len(e.Args) == 0 {
		return Key{}, nil, &engine.FieldError{Field: "args", Value: "[]", Rule: "must name a program"}
	}
	if err := checkRunWishes(r.Wishes); err != nil {
		return Key{}, nil, &BoxError{err}
	}
	if r.Profile == "" {
		r.Profile = RunProfile
	}
	none, off := spec.None, false
	r.WorkspaceMode, r.Network = &none, &off
	if strict := true; r.Require == nil {
		r.Require = &strict // whatever the profile has: no weaker wall unless the request accepts it
	}
	key, a, err := m.resolve(c, Key{tenant, "run-" + strings.ToLower(rand.Text()[:20])}, &r)
	if err != nil {
		return key, nil, &BoxError{err}
	}
	if err := exactly(&r.Wishes, &a.resolved); err != nil {
		m.deny(c, key, "run", err)
		return key, nil, err
	}
	if err := m.timeoutOf(&a.resolved, e); err != nil {
		m.deny(c, key, "run", err)
		return key, nil, err
	}
	a.once, a.resolved.AllowDegraded = true, false
	a.zygote, err = spec.FindZygote(m.policy.Zygotes(a.resolved), e.Zygote, e.Args)
	return key, a, err
}

// BoxError is a refusal of the box of a run, not of its command.
type BoxError struct{ Err error }

func (e *BoxError) Error() string { return e.Err.Error() }

func (e *BoxError) Unwrap() error { return e.Err }

// checkRunWishes refuses wishes for what a run does not have.
func checkRunWishes(w spec.Wishes) error {
	v := reflect.ValueOf(&w).Elem()
	for i := range v.NumField() {
		name := v.Type().Field(i).Name
		if name == "LiveWishes" {
			for _, limit := range []string{"CPUs", "Memory", "PIDs"} {
				v.Field(i).FieldByName(limit).SetZero()
			}
			if f, ok := firstSet(v.Field(i)); ok {
				return notInRun(f)
			}
		}
		if slices.Contains(runWishes, name) || name == "LiveWishes" {
			v.Field(i).SetZero()
		}
	}
	if f, ok := firstSet(v); ok {
		return notInRun(f)
	}
	return nil
}

// firstSet returns the first field of a struct that is not zero.
func firstSet(v reflect.Value) (reflect.StructField, bool) {
	for i := range v.NumField() {
		if !v.Field(i).IsZero() {
			return v.Type().Field(i), true
		}
	}
	return reflect.StructField{}, false
}

func notInRun(f reflect.StructField) error {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return &engine.FieldError{Field: name, Value: "given", Rule: "must be absent: a run has no such thing, a session does"}
}

// deniedBy says what a profile does with a setting of a run.
func deniedBy(profile, field, value, rule string, args ...any) error {
	return &policy.DeniedError{Field: field, Value: value, Rule: fmt.Sprintf("the profile %q ", profile) + fmt.Sprintf(rule, args...)}
}

// exactly refuses a run whose box would be another than it asks for.
func exactly(w *spec.Wishes, got *policy.Resolved) error {
	denied := func(field, value, rule string, args ...any) error {
		return &BoxError{deniedBy(got.Profile, field, value, rule, args...)}
	}
	if len(got.Overridden) > 0 {
		return denied(got.Overridden[0], "as asked", "locks another value")
	}
	if got.Image != engine.HostImage {
		return denied("image", spec.Quote(got.Image), "has another than %q, which runs have", engine.HostImage)
	}
	var want, have spec.Settings
	want.Merge(w, nil)
	want.Take(want.Spec().WithDefaults())
	box := got.Spec().WithDefaults()
	have.Take(box)
	want, have = boxSettings(want), boxSettings(have)
	for _, t := range spec.Table {
		if a, b := t.Of(&want), t.Of(&have); !a.Equal(b) {
			return denied(t.Name, t.Text(a), "gives %s", t.Text(b))
		}
	}
	if got.MaxLifetime > 0 {
		return denied("profile", spec.Quote(got.Profile), "ends its sessions after %s (max_lifetime), and a run has no such end: use another profile", got.MaxLifetime)
	}
	return nil
}

// timeoutOf refuses a run that would get another timeout than it asks for. It completes e.
func (m *Manager) timeoutOf(got *policy.Resolved, e *Exec) error {
	if e.Timeout == 0 {
		if got.TimeoutCap > 0 {
			return deniedBy(got.Profile, "timeout", spec.None, "has a cap of %s: set a timeout", got.TimeoutCap)
		}
		e.noTimeout = true
	} else if most := m.policy.Timeout(*got, e.Timeout); most != e.Timeout {
		return deniedBy(got.Profile, "timeout", spec.Duration(e.Timeout).String(), "has a cap of %s", spec.Duration(most))
	}
	return nil
}

// boxSettings returns the settings of s that the spec of a box has.
func boxSettings(s spec.Settings) (only spec.Settings) {
	only.Take(s.Spec())
	return only
}

// endRun removes a run whose command has ended. The caller counts in m.wg.
func (m *Manager) endRun(c Caller, key Key) {
	s, err := m.find(key)
	if err != nil { // it was not made
		return
	}
	r := removal{caller: c, reason: "its command has ended"}
	s.mu.Lock()
	begun, box := s.markRemovalLocked(r.reason), s.box
	s.mu.Unlock()
	switch {
	case !begun: // somebody removes it already
	case m.ctx.Err() != nil:
		if box != nil { // no successor is asked to remove it
			ctx, cancel := context.WithTimeout(context.Background(), removeTimeout)
			defer cancel()
			if err := box.Remove(ctx); err != nil {
				m.report(key, "", "removing the box of a run: "+err.Error())
			}
		}
	case m.tidyLater(s, r):
	default:
		select { // the result is known, and must not wait for ever
		case <-s.removed:
		case <-s.stumbled:
		case <-time.After(tidyPatience):
		case <-m.ctx.Done():
		}
	}
}

// tidyLater removes a run in the background, and reports whether its answer need not wait for that.
func (m *Manager) tidyLater(s *session, r removal) (free bool) {
	select {
	case m.tidying <- struct{}{}:
		free = true
	default:
	}
	m.tidied.begin(s.key.Tenant)
	remove := func() {
		s.teardown(r)
		m.tidied.end(s.key.Tenant)
		if free {
			<-m.tidying
		}
	}
	if !m.spawn(remove) {
		remove() // closing: it ends at once
	}
	return free
}

// tidied counts the runs that are being removed.
type tidied struct {
	mu    sync.Mutex
	under map[string]int // by tenant; no entry means none
	ended chan struct{}  // closed and replaced when a removal has ended
}

func (t *tidied) begin(tenant string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.under[tenant]++
}

func (t *tidied) end(tenant string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.under[tenant]--; t.under[tenant] == 0 {
		delete(t.under, tenant)
	}
	close(t.ended)
	t.ended = make(chan struct{})
}

// look returns the number of removals by tenant, and a channel that is closed when the next one has ended.
func (t *tidied) look() (under map[string]int, ended <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.under), t.ended
}
