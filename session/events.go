package session

import (
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/linux"
)

// EventType says what happened.
type EventType string

// The types of events.
const (
	EventCreated         EventType = "created" // Details: generation; sensitive, the reason, if it is
	EventRecreated       EventType = "recreated"
	EventAdopted         EventType = "adopted"
	EventState           EventType = "state" // Details: state, reason
	EventExecStarted     EventType = "exec-started"
	EventExecEnded       EventType = "exec-ended" // Details: verdict, exit_code, signal
	EventProcessStarted  EventType = "process-started"
	EventProcessExited   EventType = "process-exited"
	EventProcessStopped  EventType = "process-stopped"
	EventProcessReady    EventType = "process-ready"   // Details: after, in seconds, the first time
	EventProcessUnready  EventType = "process-unready" // Details: reason
	EventOOM             EventType = "oom"             // Details: count
	EventPIDsLimit       EventType = "pids-limit"      // Details: count
	EventAttached        EventType = "mount-attached"
	EventDetached        EventType = "mount-detached"
	EventVolumeCreated   EventType = "volume-created" // Details: volume, size
	EventVolumeResized   EventType = "volume-resized" // Details: volume, size
	EventVolumeRemoved   EventType = "volume-removed" // Details: volume
	EventPaused          EventType = "paused"
	EventResumed         EventType = "resumed"            // Details: seconds that the pause has taken
	EventSensitive       EventType = "sensitive"          // Details: reason
	EventVolumeMarked    EventType = "volume-sensitive"   // Details: volume, reason
	EventImageProgress   EventType = "image-progress"     // Details: image, step, layer, done, total
	EventImagePulled     EventType = "image-pulled"       // Details: image, digest, bytes; also of an import
	EventImageRemoved    EventType = "image-removed"      // Details: image
	EventConnection      EventType = "network-connection" // Details: state (open, ended or denied), connection, name, address, port, protocol, in, out, allowed, rule, reason, seconds, unreported
	EventPortPublished   EventType = "port-published"     // Details: port, host, address
	EventPortUnpublished EventType = "port-unpublished"   // Details: port, host, reason
	EventPortOpened      EventType = "port-opened"        // Details: port, address; a program of the box listens there
	EventPortClosed      EventType = "port-closed"        // Details: port, address
	EventExpired         EventType = "expired"
	EventRemoved         EventType = "removed"
	EventError           EventType = "error"
	// EventMissed tells one subscriber that events were dropped because it was too slow,
	// or are no longer kept. Details: count, 0 if that is not known.
	EventMissed EventType = "missed"
)

// Event is something that happened. Receivers must not change Details.
type Event struct {
	// Seq only grows, also across restarts. That of EventMissed is the last one missed.
	Seq     uint64
	Time    time.Time
	Type    EventType
	Tenant  string
	Session string
	Box     string
	Process string
	Request string
	Labels  spec.Labels // of the session, and of Process; must not be changed
	Details map[string]any
}

// endDetails returns the details of an event, and of an audit entry, about the end of a
// command. It has a signal only if one ended the command.
func endDetails(r engine.Result) map[string]any {
	d := map[string]any{"verdict": r.Verdict, "exit_code": nil}
	if r.ExitCode >= 0 {
		d["exit_code"] = r.ExitCode
	}
	if r.Signal != 0 {
		d["signal"] = linux.SignalName(r.Signal)
	}
	return d
}

// Subscription receives events. Close it.
type Subscription struct {
	// C is closed by Close and when the manager closes.
	C <-chan Event

	broker *broker
	ch     chan Event
	tenant string
	missed uint64 // since the last event that was sent; guarded by broker.mu
}

// Close ends the subscription. It may be called more than once.
func (s *Subscription) Close() {
	s.broker.mu.Lock()
	defer s.broker.mu.Unlock()
	s.broker.endLocked(s)
}

// ErrorRecord is an error that no caller received, or that an operator should see.
type ErrorRecord struct {
	Time    time.Time
	Tenant  string
	Session string
	Process string
	Message string
}
