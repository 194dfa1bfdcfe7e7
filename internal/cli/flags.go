package cli

import (
	"errors"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// runFlags are the flags of boxd run as they were given. Limits that were not
// given are zero, which means the default of the engine.
type runFlags struct {
	wishes               spec.Wishes // the settings of a box
	image, hostname      string
	timeout, grace       time.Duration
	outputLimit          int64 // -1: unlimited was asked for
	env, envFiles        []string
	given                *pflag.FlagSet // the flags as parsed
	workdir, workspace   string
	mkdir                bool
	mounts               []engine.Mount
	user                 *engine.User
	interactive, tty     bool
	json, receipt, shell bool
	allowDegraded        bool
	remove               bool // always true, or refused
	initPath, stateDir   string
}

// register declares the flags in the order in which help shows them.
func (f *runFlags) register(cmd *cobra.Command) {
	fs := cmd.Flags()
	f.given = fs
	fs.SortFlags = false
	fs.SetInterspersed(false) // what follows CMD belongs to CMD

	fs.StringVar(&f.image, "image", engine.HostImage, "root file system: `IMAGE` \"host\" is the host's own system directories, read-only")
	settingFlags(cmd, &f.wishes, true)
	fs.Var(durationValue(&f.timeout, ""), "timeout", "end the command after `DURATION` such as 30s (exit status 124)")
	fs.Var(durationValue(&f.grace, engine.DefaultGrace.String()), "grace", "time between SIGTERM and SIGKILL after a timeout: `DURATION`")

	fs.StringArrayVarP(&f.env, "env", "e", nil, "set `KEY=VALUE`, or pass KEY from the caller's environment (repeatable)")
	fs.StringArrayVar(&f.envFiles, "env-file", nil, "read variables from `FILE`, one KEY=VALUE or KEY per line (repeatable)")
	fs.StringVarP(&f.workdir, "workdir", "w", "", "working directory in the box: `DIR` (default: the workspace, else the home directory)")
	fs.BoolVar(&f.mkdir, "mkdir", false, "create the working directory if it is missing")
	fs.VarP(userValue(&f.user), "user", "u", "user and group in the box: `UID[:GID]`, 0 to 65534; GID defaults to UID (default 0:0)")
	fs.StringVar(&f.hostname, "hostname", spec.DefaultHostname, "host `NAME` in the box")

	fs.StringVar(&f.workspace, "workspace", "", "mount the host's `DIR` read-write at "+engine.WorkspaceTarget)
	fs.VarP(mountsValue(&f.mounts), "mount", "v", "mount `SRC:DST[:ro|rw]` or type=bind,source=SRC,target=DST[,readonly] (repeatable)")
	fs.Var(sizeValue(&f.outputLimit, "", true), "output-limit", "kill a command that writes more to stdout or stderr: `SIZE` (default: unlimited; 64M with --json)")

	fs.BoolVarP(&f.interactive, "interactive", "i", false, "pass boxd's stdin to the command (default: /dev/null)")
	fs.BoolVarP(&f.tty, "tty", "t", false, "give the command a terminal")
	fs.BoolVar(&f.shell, "shell", false, "run the single argument with sh -c")
	fs.BoolVar(&f.json, "json", false, "print one JSON object with output, verdict and receipt on stdout")
	fs.BoolVar(&f.receipt, "receipt", false, "print what the command used on stderr")

	fs.BoolVar(&f.remove, "rm", true, "accepted for compatibility; the box is always removed")
	fs.BoolVar(&f.allowDegraded, "allow-degraded", false, "continue if the host cannot enforce a limit")
	registerEngine(fs, &f.initPath, &f.stateDir)
}

// registerEngine declares the flags that all commands with an engine share.
func registerEngine(fs *pflag.FlagSet, initPath, stateDir *string) {
	fs.StringVar(initPath, "init", "", "`PATH` of boxd-init (default: $BOXD_INIT, or where boxd is installed)")
	fs.StringVar(stateDir, "state-dir", "", "`DIR` for locks and leases (default: $BOXD_STATE_DIR, or "+defaultStateDir+")")
}

// textValue is a flag that is parsed as soon as it is given, so that a mistake
// is reported with the name of the flag.
type textValue struct {
	text  string // as given, or the default as help shows it
	parse func(string) error
}

func (v *textValue) String() string { return v.text }
func (v *textValue) Type() string   { return "text" } // "string" would put quotes around defaults
func (v *textValue) Set(s string) error {
	if err := v.parse(s); err != nil {
		return err
	}
	v.text = s
	return nil
}

const unlimited = "unlimited"

// errZero refuses a zero that was typed: docker takes it for unlimited, others
// for nothing at all.
var errZero = errors.New(`must be more than 0; leave the flag out for the default`)

// sizeValue is a size above 0, or "unlimited" if that may be.
func sizeValue(dst *int64, byDefault string, mayBeUnlimited bool) pflag.Value {
	return &textValue{byDefault, func(s string) error {
		if s == unlimited && mayBeUnlimited {
			*dst = spec.Unlimited
			return nil
		}
		n, err := spec.ParseSize(s)
		if err == nil && n == 0 {
			err = errZero
		}
		*dst = n
		return err
	}}
}

// durationValue is a time above 0; a bare number is seconds, as for timeout(1).
func durationValue(dst *time.Duration, byDefault string) pflag.Value {
	return &textValue{byDefault, func(s string) error {
		err := parseDuration((*spec.Duration)(dst), s)
		if err == nil && *dst == 0 {
			err = errZero
		}
		return err
	}}
}

func userValue(dst **engine.User) pflag.Value {
	return &textValue{"", func(s string) error {
		u, err := parseUser(s)
		*dst = &u
		return err
	}}
}

func mountsValue(dst *[]engine.Mount) pflag.Value {
	return &textValue{"", func(s string) error {
		m, err := parseMount(s)
		*dst = append(*dst, m)
		return err
	}}
}
