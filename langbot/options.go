package langbot

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/langbot/attest"
	"github.com/boxd/boxd/policy"
	"github.com/boxd/boxd/session"
)

// Options of a [Server]. Sessions and DB are needed.
type Options struct {
	Sessions *session.Manager
	// DB is the path of the database file, which is made if it is missing.
	DB string
	// Scratch is the directory of files that clients are sending; empty: that of
	// temporary files.
	Scratch string
	// Health is nil if a box could be made now; a nil func is always well.
	Health func(ctx context.Context) error
	// Prober measures what this host guarantees; nil: nothing is known, so nothing is.
	// The server closes it.
	Prober Prober

	Tenant      string // that the sessions belong to; empty: "langbot"
	Profile     string // of the sessions; empty: policy.LangbotProfile
	BackendName string // that clients are told; empty: "boxd"
	// RefuseNetwork refuses a session that asks for a network; else it gets a box without
	// one, and a warning.
	RefuseNetwork bool
	// TimeoutEndsCommand spares the session when a command takes too long.
	TimeoutEndsCommand bool

	// Roots are the directories of the host that the tenant may mount from.
	Roots []string
	// SkillsDir keeps the skills, in one of Roots; empty: they are where box_init says, in
	// one of Roots, else each workspace's are in a volume. SkillsSize in bytes and
	// SkillsInodes (0: by the size) bound those of one workspace; a size of 0 is 256 MiB
	// for volumes and no bound in SkillsDir.
	SkillsDir    string
	SkillsSize   int64
	SkillsInodes int64

	// Init is what clients would send first, a JSON object; what they send is put over it.
	Init string
	// Logger; nil is slog.Default.
	Logger *slog.Logger
}

// Prober measures what the host guarantees; an attest.Prober is one.
type Prober interface {
	ReportOf(ctx context.Context, maxAge time.Duration, where attest.Places) attest.Report
	Close()
}

// defaultSkillsSize bounds the skills of one workspace where nothing is configured.
const defaultSkillsSize = 256 << 20

func (o Options) withDefaults() (Options, error) {
	if o.Sessions == nil || o.DB == "" {
		return o, errors.New("langbot: options need Sessions and DB")
	}
	set(&o.Tenant, "langbot")
	set(&o.Profile, policy.LangbotProfile)
	set(&o.BackendName, "boxd")
	if o.SkillsDir == "" {
		set(&o.SkillsSize, defaultSkillsSize)
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Health == nil {
		o.Health = func(context.Context) error { return nil }
	}
	if o.Prober == nil {
		o.Prober = unknown{}
	}
	return o, nil
}

// set gives *p a default.
func set[T comparable](p *T, value T) {
	var zero T
	if *p == zero {
		*p = value
	}
}

// unknown is a Prober that has measured nothing.
type unknown struct{}

// ReportOf says so.
func (unknown) ReportOf(context.Context, time.Duration, attest.Places) attest.Report {
	return nothing("not measured")
}

// Close does nothing.
func (unknown) Close() {}

// storage is where directories of limited size are; nil if there are none.
func (s *Server) storage() engine.Storage { return s.sessions.Storage() }
