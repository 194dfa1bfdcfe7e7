package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
)

// jsonOutputLimit bounds what --json holds in memory, per stream.
const jsonOutputLimit = 64 << 20

// request is a checked command line: what to run in which box, built how.
type request struct {
	spec    engine.Spec
	cmd     engine.Command // without its streams
	options EngineOptions
}

// request turns the flags and the arguments behind them into checked values.
// Nothing is built yet, so nothing has to be taken back.
func (a *App) request(f *runFlags, args []string) (request, error) {
	r := request{spec: f.spec(), options: EngineOptions{StateDir: a.stateDir(f.stateDir)}}
	if err := f.check(args); err != nil {
		return r, err
	}
	var err error
	if r.cmd, err = a.command(f, args); err != nil {
		return r, err
	}
	if err := r.spec.Validate(); err != nil {
		return r, f.nameFlag(err)
	}
	if err := r.cmd.Validate(); err != nil {
		return r, f.nameFlag(err)
	}
	r.options.InitPath, err = a.initPath(f.initPath)
	return r, err
}

// check applies the rules between flags.
func (f *runFlags) check(args []string) error {
	if err := f.refuseEmpty(); err != nil {
		return err
	}
	switch {
	case len(args) == 0:
		return errors.New(`no command given: boxd run [flags] -- CMD [ARG...]; see "boxd run --help"`)
	case f.shell && len(args) != 1:
		return &engine.FieldError{Field: "--shell", Value: fmt.Sprintf("with %d arguments", len(args)), Rule: "takes a single one, the script; quote it"}
	case f.json && f.tty:
		return &engine.FieldError{Field: "--json", Value: "with -t", Rule: "cannot be used together: a terminal has one output, for a person"}
	case !f.remove:
		return &engine.FieldError{Field: "--rm", Value: "false", Rule: "must be true: boxd run keeps no box; boxd exec runs in a session that stays"}
	case f.wishes.UpperSize != nil && (f.wishes.WritableRoot == nil || !*f.wishes.WritableRoot):
		return &engine.FieldError{Field: "--upper-size", Value: f.wishes.UpperSize.String(), Rule: "needs --rw-rootfs"}
	}
	return nil
}

// refuseEmpty says no to an empty value that was given: an unset variable of a
// script must not turn into a default.
func (f *runFlags) refuseEmpty() error {
	for _, name := range []string{"image", "workspace", "workdir", "hostname", "init", "state-dir"} {
		if flag := f.given.Lookup(name); flag != nil && flag.Changed && flag.Value.String() == "" {
			return &engine.FieldError{Field: "--" + name, Value: `""`, Rule: "must not be empty; leave the flag out for the default"}
		}
	}
	return nil
}

func (f *runFlags) spec() engine.Spec {
	var s spec.Settings
	s.Merge(&f.wishes, nil)
	box := s.Spec()
	box.Image, box.Hostname, box.AllowDegraded = f.image, f.hostname, f.allowDegraded
	if f.user != nil {
		box.User = *f.user
	}
	if f.workspace != "" {
		box.Mounts = append(box.Mounts, engine.Mount{Source: f.workspace, Target: engine.WorkspaceTarget})
	}
	box.Mounts = append(box.Mounts, f.mounts...)
	return box.WithDefaults()
}

func (a *App) command(f *runFlags, args []string) (engine.Command, error) {
	env, err := a.environment(f.envFiles, f.env)
	if err != nil {
		return engine.Command{}, err
	}
	cmd := engine.Command{
		Args: args, Env: env, Dir: f.workdir, MakeDir: f.mkdir,
		Timeout: f.timeout, Grace: f.grace, OutputLimit: f.outputLimit,
	}
	if f.shell {
		cmd.Args = []string{"sh", "-c", args[0]}
	}
	switch {
	case f.outputLimit == engine.Unlimited:
		cmd.OutputLimit = 0
	case f.outputLimit == 0 && f.json:
		cmd.OutputLimit = jsonOutputLimit
	}
	return cmd, nil
}

// flagNames are the flags behind the fields of specs and commands that are not settings.
var flagNames = map[string]string{
	"image": "--image", "hostname": "--hostname", "user.uid": "--user", "user.gid": "--user",
	"dir": "--workdir", "timeout": "--timeout", "grace": "--grace", "output_limit": "--output-limit",
}

// nameFlag puts the name of the flag into an error about a field.
func (f *runFlags) nameFlag(err error) error {
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
	if rest, ok := strings.CutPrefix(bad.Field, "mounts"); ok {
		named.Field = f.mountFlag(rest)
	}
	return &named
}

// mountFlag is the flag behind a field of a mount, "[0].source" or ".target". The
// workspace, if there is one, comes first in the list.
func (f *runFlags) mountFlag(field string) string {
	flag := "--mount"
	if f.workspace != "" && strings.HasPrefix(field, "[0]") {
		flag = "--workspace"
	}
	if _, part, ok := strings.Cut(field, "."); ok {
		flag += " " + part
	}
	return flag
}
