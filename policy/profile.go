package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/boxd/boxd/egress/rules"
	"github.com/boxd/boxd/engine/spec"
)

// Profile is a named set of defaults, caps and locked fields.
type Profile struct {
	Name string
	// Settings are the defaults of a request.
	spec.Settings
	// AllowNetwork, AllowPublish and AllowPersistent say whether a request may ask for these.
	AllowNetwork    bool
	AllowPublish    bool
	AllowPersistent bool
	// NetworkRules are what sessions with a network may reach.
	NetworkRules rules.Rules
	// Scope is the template of the session's ID for a request that names neither; empty:
	// none. See [ScopeID].
	Scope string
	// KeepArgv and KeepOutput say what the history keeps of commands and processes.
	KeepArgv string // KeepFull, KeepProgram or KeepNone
	// KeepOutput is how many bytes of each output stream of a command the history keeps; 0: none.
	KeepOutput spec.Size
	// Images are patterns of the images that sessions may have, see [fullPattern]; nil:
	// every image. ImageDigests demands references with a digest.
	Images       []string
	ImageDigests bool
	// Engines build the boxes, in the order in which they are tried; nil: those of the daemon.
	Engines []string
	// Caps are the most that a request may ask for. A negative one is no cap.
	Caps spec.Caps
	// Locked names, sorted, the fields of a request that are ignored in favour of the
	// profile's value.
	Locked []string
	// CodeLanguages are the languages that sessions run code in, by name.
	CodeLanguages map[string]Language
}

// DefaultProfile is the profile of a request that names none, LangbotProfile that of LangBot's
// sessions, RunProfile that of runs that name none, and DefaultIdleTTL the idle TTL of profiles that set none.
const (
	DefaultProfile = "default"
	LangbotProfile = "langbot"
	RunProfile     = "run"
	DefaultIdleTTL = 300 * time.Second
)

// How much of a command line the history keeps.
const (
	KeepFull    = "full"
	KeepProgram = "program" // without its arguments
	KeepNone    = "none"
)

// MaxKeepOutput bounds Profile.KeepOutput.
const MaxKeepOutput = 1 << 20

// unlimitedTime stands for no cap.
const unlimitedTime = spec.Duration(-time.Second)

func minutes(n int) spec.Duration { return spec.Duration(time.Duration(n) * time.Minute) }

// builtin returns the profiles that always exist.
func builtin(idleTTL spec.Duration) map[string]Profile {
	base := Profile{
		Name: DefaultProfile,
		Settings: spec.Settings{
			Image: spec.HostImage, Pull: spec.PullNever, Isolation: spec.IsolationNamespaces, Require: true,
			CPUs: 1, Memory: 512 << 20, PIDs: spec.DefaultPIDs, OpenFiles: spec.DefaultOpenFiles, FileSize: spec.Unlimited,
			TmpSize: spec.DefaultTmpSize, UpperSize: spec.DefaultUpperSize, WorkspaceMode: spec.ReadWrite, MountMode: spec.ReadWrite,
			Timeout: spec.Duration(30 * time.Second), IdleTTL: idleTTL, Retain: spec.None,
		},
		AllowNetwork: true, NetworkRules: publicNetwork, AllowPublish: true, AllowPersistent: true, KeepArgv: KeepFull,
		Caps: spec.Caps{
			CPUs: 4, Memory: 4 << 30, PIDs: 1024, TmpSize: 1 << 30, UpperSize: 2 << 30, WorkspaceSize: spec.Unlimited,
			Timeout: spec.Duration(120 * time.Second), IdleTTL: spec.Duration(7 * 24 * time.Hour), MaxLifetime: unlimitedTime,
		},
	}

	offline := base
	offline.Name = "offline_readonly"
	offline.CPUs, offline.Memory, offline.PIDs = 0.5, 256<<20, 64
	offline.Caps.CPUs, offline.Caps.Memory, offline.Caps.PIDs = 0.5, 256<<20, 64
	offline.UpperSize = 128 << 20 // an upper layer counts as memory, so it must be smaller
	offline.Caps.UpperSize = 128 << 20
	offline.Caps.TmpSize = 256 << 20
	offline.Caps.Timeout = spec.Duration(60 * time.Second)
	offline.WorkspaceMode, offline.MountMode = spec.ReadOnly, spec.ReadOnly
	offline.AllowNetwork, offline.NetworkRules, offline.Sensitive = false, rules.Rules{}, true
	offline.AllowPublish = false
	offline.Locked = []string{"network", "sensitive", "workspace_mode", "writable_root"}

	basic := base
	basic.Name = "network_basic"
	basic.Network = true
	basic.NetworkRules = rules.Rules{Allow: packageIndexes, Limits: defaultLimits}

	extended := basic
	extended.Name = "network_extended"
	extended.NetworkRules = publicNetwork
	extended.CPUs, extended.Memory, extended.PIDs = 2, 1024<<20, 512
	extended.WritableRoot = true
	extended.Caps.Timeout = spec.Duration(300 * time.Second)

	// Code of a user or a model: one run after the other, for an hour, without a network.
	execution := base
	execution.Name = "execution"
	execution.PIDs = 128
	execution.Timeout, execution.Caps.Timeout = minutes(1), minutes(10)
	execution.MaxLifetime, execution.Caps.MaxLifetime = minutes(60), minutes(24*60)
	execution.AllowNetwork, execution.NetworkRules, execution.AllowPersistent = false, rules.Rules{}, false
	execution.AllowPublish = false

	// Servers: room for several processes, and a day without use.
	app := base
	app.Name = "app"
	app.CPUs, app.Memory, app.PIDs = 2, 1<<30, 512
	app.TmpSize = 256 << 20
	app.IdleTTL, app.Caps.IdleTTL = minutes(24*60), minutes(30*24*60)
	app.Timeout, app.Caps.Timeout = minutes(1), minutes(60)
	app.Caps.PIDs = 4096

	// Chromium 156, headless, on two processors: 200 MiB and 125 threads with one tab, 30 MiB
	// and 11 threads for each other one, 1.4 GiB for a screenshot of 27 megapixels. More
	// processors mean more threads. Older browsers have shared memory in /dev/shm, of TmpSize.
	browser := base
	browser.Name = "browser"
	browser.CPUs, browser.Memory, browser.PIDs = 2, 2<<30, 1024
	browser.TmpSize = 512 << 20
	browser.IdleTTL = minutes(15)
	browser.Timeout, browser.Caps.Timeout = minutes(2), minutes(10)
	browser.Caps.Memory, browser.Caps.PIDs = 8<<30, 4096

	langbot := base
	langbot.Name = LangbotProfile
	langbot.Caps.Timeout = spec.Duration(time.Hour)
	langbot.AllowPublish = false

	// One command in a box of its own, whose client waits for it: boxd run.
	run := base
	run.Name = RunProfile
	run.Caps.Timeout = unlimitedTime
	run.WorkspaceMode = spec.None
	run.AllowNetwork, run.NetworkRules, run.AllowPersistent = false, rules.Rules{}, false
	run.AllowPublish = false

	all := map[string]Profile{}
	for _, p := range []Profile{base, offline, basic, extended, execution, app, browser, langbot, run} {
		all[p.Name] = p
	}
	return all
}

// clone returns a copy that shares no memory with p.
func (p Profile) clone() Profile {
	p.Locked, p.Images, p.Engines = slices.Clone(p.Locked), slices.Clone(p.Images), slices.Clone(p.Engines)
	p.NetworkRules.Allow, p.NetworkRules.Deny = slices.Clone(p.NetworkRules.Allow), slices.Clone(p.NetworkRules.Deny)
	p.NetworkRules.Inject = slices.Clone(p.NetworkRules.Inject)
	if p.CodeLanguages = maps.Clone(p.CodeLanguages); p.CodeLanguages == nil {
		p.CodeLanguages = map[string]Language{}
	}
	return p
}

// validate checks that a request could ask for every default of p. field is the key of p in
// the configuration.
func (p Profile) validate(field string) error {
	lockable := spec.Lockable()
	for _, name := range p.Locked {
		if !slices.Contains(lockable, name) {
			return &spec.FieldError{Field: field + ".locked", Value: spec.Quote(name), Rule: "must be one of " + strings.Join(lockable, ", ")}
		}
	}
	for _, t := range spec.Table {
		switch c := t.Of(&p.Caps); {
		case !c.IsValid():
		case c.IsZero():
			return &spec.FieldError{Field: field + ".caps." + t.Name, Value: "0", Rule: "must be above 0, or -1 for none"}
		case c.CanFloat() && c.Float() != c.Float():
			return &spec.FieldError{Field: field + ".caps." + t.Name, Value: "NaN", Rule: "must be a number"}
		}
	}
	if err := p.validateLanguages(field); err != nil {
		return err
	}
	if p.Scope != "" {
		if err := ValidateScope(p.Scope); err != nil {
			return inField(field, err)
		}
	}
	if keeps := []string{KeepFull, KeepProgram, KeepNone}; !slices.Contains(keeps, p.KeepArgv) {
		return &spec.FieldError{Field: field + ".keep_argv", Value: spec.Quote(p.KeepArgv), Rule: "must be one of " + strings.Join(keeps, ", ")}
	}
	if p.KeepOutput < 0 || p.KeepOutput > MaxKeepOutput {
		return &spec.FieldError{Field: field + ".keep_output", Value: p.KeepOutput.String(), Rule: "must be 0 (none) to " + spec.FormatSize(MaxKeepOutput)}
	}
	if p.Network && !p.AllowNetwork {
		return &spec.FieldError{Field: field + ".network", Value: "true", Rule: "needs allow_network: true"}
	}
	if err := p.NetworkRules.Validate(); err != nil {
		return inField(field+".network_rules", err)
	}
	if i := uncovered(p.NetworkRules); i >= 0 {
		return &spec.FieldError{Field: fmt.Sprintf("%s.network_rules.inject[%d].host", field, i), Value: spec.Quote(p.NetworkRules.Inject[i].Host),
			Rule: "is not reached by these rules: name it in allow"}
	}
	if p.Network && p.Sensitive {
		return &spec.FieldError{Field: field + ".network", Value: "true", Rule: "must be false, because the profile is sensitive: a sensitive session has no network"}
	}
	if p.Persistent && !p.AllowPersistent {
		return &spec.FieldError{Field: field + ".persistent", Value: "true", Rule: "needs allow_persistent: true"}
	}
	// First the caps, in the order in which a request is checked, then the engine's rules.
	writes := p.WorkspaceMode != spec.None
	if err := p.check(&p.Settings, writes, func(limit string) string { return "raise " + field + ".caps." + limit }); err != nil {
		return inField(field, err)
	}
	if p.Caps.Timeout >= 0 && p.Timeout > p.Caps.Timeout {
		return &spec.FieldError{Field: field + ".timeout", Value: p.Timeout.String(),
			Rule: fmt.Sprintf("must be above 0 and at most the cap %s: raise %s.caps.timeout", p.Caps.Timeout, field)}
	}
	if err := p.validateImages(field); err != nil {
		return err
	}
	return inField(field, p.Settings.Spec().Validate())
}

// check refuses settings that break a rule or exceed a cap of p; advice says what to do
// about a cap. writes says that the workspace can be written, so that its size matters. The
// timeout is not checked, because it is cut to its cap.
func (p Profile) check(s *spec.Settings, writes bool, advice func(limit string) string) error {
	if err := s.Validate(); err != nil {
		return err
	}
	if s.WorkspaceSize != 0 && !writes {
		return &spec.FieldError{Field: "workspace_size", Value: s.WorkspaceSize.String(),
			Rule: fmt.Sprintf("must be 0, because nothing can be written in this workspace: its workspace_mode is %q", s.WorkspaceMode)}
	}
	for _, t := range spec.Table {
		idle := t.Name == "timeout" || t.Name == "upper_size" && !s.WritableRoot || t.Name == "workspace_size" && !writes
		if !idle && t.Above(s, &p.Caps) {
			value := t.Text(t.Of(s))
			if t.Of(s).IsZero() {
				value = "0 (" + t.Zero + ")"
			}
			return &spec.FieldError{Field: t.Name, Value: value,
				Rule: fmt.Sprintf("is above the cap %s of profile %q: %s", t.Text(t.Of(&p.Caps)), p.Name, advice(t.Name))}
		}
	}
	return nil
}

// inField puts prefix in front of the field of a FieldError.
func inField(prefix string, err error) error {
	if bad, ok := err.(*spec.FieldError); ok {
		return &spec.FieldError{Field: prefix + "." + bad.Field, Value: bad.Value, Rule: bad.Rule}
	}
	return err
}
