package langbot

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/langbot/attest"
	"github.com/boxd/boxd/policy"
	"github.com/boxd/boxd/session"
)

// Options of a [Server]. Sessions and DB are required.
type Options struct {
	Sessions *session.Manager
	// DB is the path of the database file, which is created if it is missing.
	DB string
	// Scratch is the directory for files that clients upload; empty: [os.TempDir].
	Scratch string
	// Health returns nil if a box could be created now. A nil Health always does.
	Health func(ctx context.Context) error
	// Prober measures what this host guarantees. Without one, no guarantee counts as given.
	// The server closes it.
	Prober Prober

	Tenant      string // the owner of the sessions; empty: "langbot"
	Profile     string // the profile of the sessions; empty: policy.LangbotProfile
	BackendName string // the name that clients are told; empty: "boxd"
	// ImageNames maps names of images in requests to images of sessions. Other names mean the
	// image of Profile. A request never pulls.
	ImageNames map[string]string
	// RefuseNetwork refuses sessions that ask for a network. Otherwise such a session gets one
	// with OfferNetwork, if Profile may have it, narrowed by NetworkRules; else a box without,
	// and a warning.
	RefuseNetwork, OfferNetwork bool
	NetworkRules                *spec.NetworkRules
	// TimeoutEndsCommand makes a timeout end only the command, not its session.
	TimeoutEndsCommand bool

	// Roots are the directories of the host that the tenant may mount from.
	Roots []string
	// SkillsDir is the directory that keeps the skills, in one of Roots. If it is empty, they
	// are kept where box_init says, in one of Roots, or else in one volume per workspace.
	// SkillsSize (bytes) and SkillsInodes (0: derived from the size) limit the skills of one
	// workspace. A size of 0 means 256 MiB for volumes, and no limit in SkillsDir.
	SkillsDir    string
	SkillsSize   int64
	SkillsInodes int64

	// Init is a JSON object that counts as every instance's first box_init. What the instance
	// itself sends overrides it.
	Init string
	// Logger; nil is slog.Default.
	Logger *slog.Logger
}

// Prober measures what the host guarantees; [attest.Prober] implements it.
type Prober interface {
	Report(ctx context.Context, maxAge time.Duration, where attest.Places) attest.Report
	Close()
}

// defaultSkillsSize limits the skills of one workspace where nothing is configured.
const defaultSkillsSize = 256 << 20

func (o Options) withDefaults() (Options, error) {
	if o.Sessions == nil || o.DB == "" {
		return o, errors.New("langbot: options need Sessions and DB")
	}
	o.Tenant = cmp.Or(o.Tenant, "langbot")
	o.Profile = cmp.Or(o.Profile, policy.LangbotProfile)
	o.BackendName = cmp.Or(o.BackendName, "boxd")
	if o.SkillsDir == "" {
		o.SkillsSize = cmp.Or(o.SkillsSize, defaultSkillsSize)
	}
	o.Logger = cmp.Or(o.Logger, slog.Default())
	if o.Health == nil {
		o.Health = func(context.Context) error { return nil }
	}
	return o, nil
}

// storage keeps directories of limited size; nil if this engine has none.
func (s *Server) storage() engine.Storage { return s.sessions.Storage() }
