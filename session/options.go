package session

import (
	"log/slog"
	"os"
	"time"

	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/policy"
)

// Options of a [Manager]. DB, Workspaces, Engine and Policy are needed.
type Options struct {
	// DB is the path of the database file. Beside it daemon.lock is held as long as
	// the manager is open.
	DB string
	// Lock is what [LockState] returned, if that was called already; Close closes it.
	// Nil: Open takes the lock.
	Lock *os.File
	// Workspaces is the directory of the workspaces that boxd keeps; made if missing.
	Workspaces string
	Engine     engine.Service
	// Storage keeps the workspaces that have a hard limit. Nil: such a limit is refused.
	Storage engine.Storage
	Policy  *policy.Policy
	// Audit is told every decision; what it cannot write down is not done. Nil: no
	// audit.
	Audit Auditor
	// Logger; nil is slog.Default.
	Logger *slog.Logger
	// OutputLimit bounds what a command may write to stdout and stderr, each, in
	// bytes; more ends it. 0 is DefaultOutputLimit, negative none.
	OutputLimit int64
	// CaptureLimit bounds what of each stream is kept in memory for
	// [ExecResult.Stdout], in bytes: of a longer one beginning and end, see [headtail.Buffer]. 0 is DefaultCaptureLimit.
	CaptureLimit int64
	// History is the size of each output ring of a managed process that names none;
	// 0 is engine.DefaultHistory.
	History int64
	// KeepEnded is how many ended managed processes a session keeps with their
	// output; 0 is DefaultKeepEnded, negative none.
	KeepEnded int
	// StopGrace is the time between SIGTERM and SIGKILL when a managed process is
	// stopped; 0 is DefaultStopGrace.
	StopGrace time.Duration
	// MinFree is how many percent of the file system of Workspaces boxes may not take up,
	// where workspaces have no hard limit; 0: no matter.
	MinFree int
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

// Auditor writes down what was decided; an [audit.Log] is one. It is safe for
// concurrent use.
type Auditor interface {
	Append(e audit.Entry) error
}

// ExecObservation is one command that ended.
type ExecObservation struct {
	Tenant   string
	Duration time.Duration // from the call to the result
	Verdict  engine.Verdict
}
