package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/boxd/boxd/config"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/choose"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/oneshot"
)

// jsonOutputLimit bounds what --json holds in memory, per stream.
const jsonOutputLimit = 64 << 20

// request is a checked command line: what to run, in which box, and what builds the box.
type request struct {
	spec    engine.Spec
	engines choose.Request // that may build the box
	cmd     engine.Command // without its streams
	options EngineOptions
	// userName is the image's user if only the image's /etc/passwd has its number; empty: spec has it.
	userName string
}

// request checks the flags and the arguments after them, and finds the image. It builds no box yet, so there is
// nothing to undo.
func (a *App) request(f *runFlags, args []string) (request, error) {
	r := request{spec: f.spec(), engines: f.engines(), options: EngineOptions{StateDir: a.stateDir(f.stateDir), Programs: a.programs()}}
	if err := f.check(args); err != nil {
		return r, err
	}
	r.cmd = engine.Command{Dir: f.workdir, MakeDir: f.mkdir, Timeout: f.timeout, Grace: f.grace, OutputLimit: f.outputLimit}
	switch {
	case f.outputLimit == engine.Unlimited:
		r.cmd.OutputLimit = 0
	case f.outputLimit == 0 && f.json:
		r.cmd.OutputLimit = jsonOutputLimit
	}
	var err error
	if len(args) > 0 {
		if r.cmd.Args, err = f.argv(args); err != nil {
			return r, err
		}
	}
	if r.cmd.Env, err = a.environment(f.envFiles, f.env); err != nil {
		return r, err
	}
	oneshot.SortEnv(r.cmd.Env)
	if err := r.spec.Validate(); err != nil {
		return r, f.nameFlag(err)
	}
	if len(args) > 0 {
		if err := r.cmd.Validate(); err != nil {
			return r, f.nameFlag(err)
		}
	}
	if r.options.InitPath, err = a.initPath(f.initPath); err != nil || f.image == engine.HostImage {
		return r, err
	}
	r.options.DataDir, r.options.AllowDegraded = a.dataDir(f.dataDir), f.allowDegraded
	img, err := a.findImage(f, r.options)
	if err != nil {
		return r, err
	}
	if err := r.useImage(img, f); err != nil {
		return r, fmt.Errorf("--image %s: %w", spec.Quote(f.image), err)
	}
	return r, nil
}

// programs returns the programs of engines that the environment names.
func (a *App) programs() config.Programs {
	return config.ProgramsOf(func(name string) string { return a.env("", name) })
}

// check applies the rules between flags.
func (f *runFlags) check(args []string) error {
	if err := refuseEmpty(f.given, "image", "pull", "workspace", "workdir", "hostname", "init", "state-dir", "data-dir", "upstream", "upstream-login", "socket"); err != nil {
		return err
	}
	if err := f.checkNetwork(); err != nil {
		return err
	}
	for _, word := range []struct {
		flag  string
		given *string
		words []string
	}{{"--engine", f.wishes.Engine, spec.Engines}, {"--isolation", f.wishes.Isolation, spec.Isolations}} {
		if word.given != nil && !slices.Contains(word.words, *word.given) {
			return &engine.FieldError{Field: word.flag, Value: spec.Quote(*word.given), Rule: "must be one of " + strings.Join(word.words, ", ")}
		}
	}
	if bad, ok := errors.AsType[*engine.FieldError](spec.ValidatePublish(f.publish)); ok {
		return &engine.FieldError{Field: "--publish", Value: bad.Value, Rule: bad.Rule}
	}
	switch {
	case len(args) == 0 && (f.image == engine.HostImage || f.shell):
		return errors.New(`no command given: boxd run [flags] -- CMD [ARG...]; see "boxd run --help"`)
	case f.direct && f.socket != "":
		return &engine.FieldError{Field: "--direct", Value: "with --socket", Rule: "cannot be used together"}
	case f.json && f.tty:
		return &engine.FieldError{Field: "--json", Value: "with -t", Rule: "cannot be used together: a terminal has one output, for a person"}
	case f.pull != spec.PullMissing && f.pull != spec.PullNever && f.pull != spec.PullAlways:
		return &engine.FieldError{Field: "--pull", Value: spec.Quote(f.pull), Rule: "must be missing, never or always"}
	case f.wishes.Isolation != nil && !offered(f.engines()):
		return &engine.FieldError{Field: "--isolation", Value: spec.Quote(*f.wishes.Isolation), Rule: fmt.Sprintf("the engine %s does not have it: leave --engine out, or name another", *f.wishes.Engine)}
	case !f.remove:
		return &engine.FieldError{Field: "--rm", Value: "false", Rule: "must be true: boxd run keeps no box; boxd exec runs in a session that stays"}
	case f.wishes.UpperSize != nil && (f.wishes.WritableRoot == nil || !*f.wishes.WritableRoot):
		return &engine.FieldError{Field: "--upper-size", Value: f.wishes.UpperSize.String(), Rule: "needs --rw-rootfs"}
	}
	return nil
}

// engines returns the engines that may build the box: the one that was named, or else the first that has
// the isolation.
func (f *runFlags) engines() choose.Request {
	r := choose.Request{Order: spec.Engines, Walls: []string{spec.IsolationNamespaces}}
	if f.wishes.Engine != nil {
		r.Order = []string{*f.wishes.Engine}
	}
	if f.wishes.Isolation != nil {
		r.Walls = []string{*f.wishes.Isolation}
	}
	return r
}

func offered(r choose.Request) bool {
	return slices.ContainsFunc(r.Order, func(name string) bool { return spec.Offers(name, r.Walls[0]) })
}

func (f *runFlags) spec() engine.Spec {
	var s spec.Settings
	s.Merge(&f.wishes, nil)
	box := s.Spec()
	box.Hostname, box.AllowDegraded = f.hostname, f.allowDegraded
	if f.user != nil {
		box.User = *f.user
	}
	if f.workspace != "" {
		box.Mounts = append(box.Mounts, engine.Mount{Source: f.workspace, Target: engine.WorkspaceTarget})
	}
	box.Mounts = append(box.Mounts, f.mounts...)
	return box.WithDefaults()
}

// flagNames maps fields of specs and commands to their flags. Flags of settings are in
// spec.Table.
var flagNames = map[string]string{
	"image": "--image", "hostname": "--hostname", "user.uid": "--user", "user.gid": "--user",
	"dir": "--workdir", "timeout": "--timeout", "grace": "--grace", "output_limit": "--output-limit",
}

// nameFlag replaces the field in a field error by the flag that sets it.
func (f *runFlags) nameFlag(err error) error {
	if errors.Is(err, engine.ErrNoLayer) {
		return fmt.Errorf("--image %s: it was removed meanwhile, pull or import it again: %w", spec.Quote(f.image), err)
	}
	bad, ok := errors.AsType[*engine.FieldError](err)
	if !ok {
		return err
	}
	named := *bad
	if flag, ok := flagNames[bad.Field]; ok {
		named.Field = flag
	} else if flag := settingFlag(bad.Field); flag != "" {
		named.Field = "--" + flag
	}
	if rest, ok := strings.CutPrefix(bad.Field, "mounts"); ok { // "mounts[0].source", or "mounts.target"
		named.Field = "--mount"
		if f.workspace != "" && strings.HasPrefix(rest, "[0]") { // the workspace comes first
			named.Field = "--workspace"
		}
		if _, part, ok := strings.Cut(rest, "."); ok {
			named.Field += " " + part
		}
	}
	return &named
}
