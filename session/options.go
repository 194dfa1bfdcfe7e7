package session

import (
	"log/slog"
	"os"
	"time"

	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/egress"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/policy"
	"github.com/boxd/boxd/session/history"
)

// Options of a [Manager]. DB, Workspaces, Engine and Policy are required.
type Options struct {
	// DB is the path of the database file. The manager holds daemon.lock beside it while it
	// is open.
	DB string
	// Lock is the result of [LockState], if that was called before; Close closes it. Nil:
	// Open takes the lock.
	Lock *os.File
	// Workspaces is the directory of the workspaces that boxd keeps. It is created if
	// missing.
	Workspaces string
	Engine     engine.Service
	// Storage keeps the workspaces that have a hard limit. Nil: a request for such a limit
	// is refused.
	Storage engine.Storage
	// Images keeps the images of sessions. Nil: there is only "host".
	Images Images
	Policy *policy.Policy
	// Egress is what the proxies of sessions with a network begin with. The manager sets its Rules.
	Egress egress.Config
	// Audit receives every decision. An action that it cannot record is refused. Nil: no
	// audit.
	Audit Auditor
	// Logger; nil is slog.Default.
	Logger *slog.Logger
	// OutputLimit is how many bytes a command may write to stdout and to stderr, each; a
	// command that writes more is killed. 0 is DefaultOutputLimit, negative means no limit.
	OutputLimit int64
	// CaptureLimit is how many bytes of each stream [ExecResult] keeps: of a longer one the
	// beginning and the end, see [headtail.Buffer]. 0 is
	// DefaultCaptureLimit.
	CaptureLimit int64
	// History is the size of each output ring of a managed process whose spec names none; 0
	// is engine.DefaultHistory.
	History int64
	// KeepEnded is how many ended managed processes a session keeps with their output; 0 is
	// DefaultKeepEnded, negative means none.
	KeepEnded int
	// StopGrace is the time between SIGTERM and SIGKILL when a managed process is
	// stopped; 0 is DefaultStopGrace.
	StopGrace time.Duration
	// ExecHistory bounds the records of commands and processes that have ended. Dir is "history" next to
	// DB if it is empty; Open sets Report.
	ExecHistory history.Options
	// MetricLabels are the keys of labels of sessions that [Manager.UsageTotals] tells apart.
	MetricLabels []string
	// MinFree is how many percent of the file system of Workspaces must stay free of data
	// that boxes write to workspaces without a hard limit; 0: none.
	MinFree int
	// Outbox delivers messages about the ends of managed processes and sessions. Nil: nobody is told.
	// Close closes it.
	Outbox Outbox
	// Observe, if not nil, is called after each command. It must not block.
	Observe func(ExecObservation)

	space func() (space, error) // for tests
}

// Defaults of [Options].
const (
	DefaultOutputLimit  = 16 << 20
	DefaultCaptureLimit = 1 << 20
	DefaultKeepEnded    = 16
	DefaultStopGrace    = 5 * time.Second
)

// Auditor records decisions; an [audit.Log] is one. It is safe for concurrent use.
type Auditor interface {
	Append(e audit.Entry) error
}

// ExecObservation describes one command that has ended.
type ExecObservation struct {
	Tenant   string
	Duration time.Duration // from the call to the result
	Verdict  engine.Verdict
	Warm     bool // a warm interpreter took it over
}
