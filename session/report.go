package session

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/images"
	"github.com/boxd/boxd/internal/oneline"
	"github.com/boxd/boxd/policy"
)

// system is the caller of actions that the manager takes by itself.
var system = Caller{Actor: "boxd"}

// audit writes an entry about session key.
func (m *Manager) audit(c Caller, key Key, e audit.Entry) error {
	if m.options.Audit == nil {
		return nil
	}
	e.Tenant, e.Session = key.Tenant, key.ID
	e.Actor, e.Request = c.ActorIn(key.Tenant), c.Request
	if len(e.Reason) > maxAuditArgs { // the log refuses lines that are too long
		e.Reason = cut(e.Reason) + "…"
	}
	if err := m.options.Audit.Append(e); err != nil {
		m.report(key, e.Process, "audit log: "+err.Error())
		return &storageError{"audit log", "", err}
	}
	return nil
}

// auditDecisions records the decisions of the policy before they are acted on.
func (m *Manager) auditDecisions(c Caller, key Key, list []policy.Decision) error {
	for _, d := range list {
		if err := m.auditDecision(c, key, d, ""); err != nil {
			return err
		}
	}
	return nil
}

func (m *Manager) auditDecision(c Caller, key Key, d policy.Decision, process string) error {
	e := audit.Entry{Action: d.Action, Process: process, Decision: audit.Allow, Reason: d.Rule, Details: d.Details}
	if !d.Allowed {
		e.Decision = audit.Deny
	}
	return m.audit(c, key, e)
}

// noteFailure audits that an action failed, and returns err. It also reports err to
// operators, unless the caller is the reason (it lost a race, sent a wrong request, or gave
// up) or the box was lost, which is reported elsewhere.
func (m *Manager) noteFailure(c Caller, key Key, action string, err error) error {
	if errors.Is(err, errAgain) || errors.Is(err, errRemoved) {
		return err
	}
	_ = m.audit(c, key, audit.Entry{Action: action, Decision: audit.Failed, Reason: err.Error()}) // reports its error
	for _, own := range []error{context.Canceled, context.DeadlineExceeded, policy.ErrQuota, policy.ErrDenied, engine.ErrInvalid,
		engine.ErrNotFound, engine.ErrNotExecutable, engine.ErrNoDir, engine.ErrAtLimit, engine.ErrBoxLost, ErrCodeUnwritten, engine.ErrPaused, engine.ErrUnenforceable, ErrState, ErrClosed, ErrVolumeInUse, ErrVolumeLost,
		ErrImageNotPresent, images.ErrUnknown, images.ErrLogin, images.ErrPlatform, images.ErrRefused, images.ErrQuota} {
		if errors.Is(err, own) {
			return err
		}
	}
	m.report(key, "", action+": "+err.Error())
	return err
}

// report tells operators about an error: in the log, the list of errors and an event.
func (m *Manager) report(key Key, process, message string) {
	message = oneline.Text(message) // joined errors have several lines
	m.errors.add(ErrorRecord{Time: time.Now().Round(0), Tenant: key.Tenant, Session: key.ID, Process: process, Message: message})
	m.publish(Event{Type: EventError, Tenant: key.Tenant, Session: key.ID, Process: process, Details: map[string]any{"message": message}})
}

// labelDetails are the name and the labels of a session in the audit log; nil: there are none.
func labelDetails(r policy.Resolved) map[string]any {
	d := map[string]any{}
	if r.Name != "" {
		d["name"] = r.Name
	}
	if len(r.Labels) > 0 {
		d["labels"] = r.Labels
	}
	if len(d) == 0 {
		return nil
	}
	return d
}

// createDetails are those of a new session in the audit log.
func (s *session) createDetails() map[string]any {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.builtDetailsLocked()
	maps.Copy(d, labelDetails(s.record.Resolved))
	if i := s.record.Image; i != nil {
		d["image"], d["digest"] = s.record.Resolved.Image, i.Digest
	}
	return d
}

// builtDetailsLocked say in the audit log what the box was built with.
func (s *session) builtDetailsLocked() map[string]any {
	built := s.record.Built
	d := map[string]any{"engine": built.Engine, "isolation": built.Isolation}
	if built.Degraded != "" {
		d["degraded"] = built.Degraded
	}
	return d
}

// publish publishes an event about the session and its box; an empty box means the one that it
// has now. The caller holds no lock.
func (s *session) publish(t EventType, c Caller, box string, details map[string]any) {
	s.mu.Lock()
	e := s.eventLocked(t, c, details)
	s.mu.Unlock()
	e.Box = cmp.Or(box, e.Box)
	s.m.publish(e)
}

func (s *session) eventLocked(t EventType, c Caller, details map[string]any) Event {
	return Event{Type: t, Tenant: s.key.Tenant, Session: s.key.ID, Box: s.record.Box, Request: c.Request, Labels: s.record.Resolved.Labels, Details: details}
}

// publish sends e to the subscribers and to the log.
func (m *Manager) publish(e Event) {
	m.events.publish(e)
	m.logEvent(e)
}

// logEvent writes e, with all its IDs, to the log. An event that changes the state of a
// session is sent to subscribers with the lock of the session held, so that its
// consequences follow it; the log is written afterwards because it may be slow.
func (m *Manager) logEvent(e Event) {
	level := slog.LevelInfo
	switch e.Type {
	case EventExecStarted, EventExecEnded, EventImageProgress, EventConnection, EventPortOpened, EventPortClosed:
		level = slog.LevelDebug
	case EventError:
		level = slog.LevelWarn
	}
	if !m.log.Enabled(m.ctx, level) {
		return
	}
	var attrs []slog.Attr
	for _, a := range []struct{ name, value string }{
		{"tenant", e.Tenant}, {"session", e.Session}, {"box", e.Box}, {"process", e.Process}, {"request", e.Request},
	} {
		if a.value != "" {
			attrs = append(attrs, slog.String(a.name, a.value))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(e.Details)) {
		attrs = append(attrs, slog.Any(name, e.Details[name]))
	}
	m.log.LogAttrs(m.ctx, level, string(e.Type), attrs...)
}

// keepErrors is the number of errors kept.
const keepErrors = 100

// errorLog holds the latest errors.
type errorLog struct {
	mu   sync.Mutex
	list []ErrorRecord // oldest first
}

func (l *errorLog) add(r ErrorRecord) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.list) == keepErrors {
		l.list = slices.Delete(l.list, 0, 1)
	}
	l.list = append(l.list, r)
}

func (l *errorLog) newest() []ErrorRecord {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := slices.Clone(l.list)
	slices.Reverse(out)
	return out
}
