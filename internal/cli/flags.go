package cli

import (
	"time"

	"github.com/boxd/boxd/egress/rules"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/flagtext"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// runFlags are the flags of boxd run. A limit that was not given is zero, which means the
// engine's default.
type runFlags struct {
	commandFlags
	wishes             spec.Wishes // the settings of the box
	image, hostname    string
	timeout, grace     time.Duration
	outputLimit        int64          // -1: "unlimited" was given
	given              *pflag.FlagSet // the flags as parsed
	workspace          string
	mounts             []engine.Mount
	interactive, tty   bool
	json, receipt      bool
	allowDegraded      bool
	remove             bool // false is refused
	initPath, stateDir string
	pull, dataDir      string
	network            string   // "none" or "proxy"
	allow, deny        []string // what the network leads to
	netLimits          spec.NetworkLimits
	inject             []rules.Inject
	upstream           string // proxy for all connections
	upstreamLogin      string // file with its user:password; made absolute
	explain            bool
	publish            []spec.PublishWish
	direct             bool
	socket             string // of the daemon that must run the command; empty: one that may
}

// register declares the flags in the order in which the help shows them.
func (f *runFlags) register(cmd *cobra.Command) {
	fs := cmd.Flags()
	f.given = fs
	fs.SortFlags = false
	fs.SetInterspersed(false) // flags after CMD belong to CMD

	fs.StringVar(&f.image, "image", engine.HostImage, "root file system: `IMAGE` \"host\" is the host's, read-only; others as in boxd image ls")
	fs.StringVar(&f.pull, "pull", spec.PullMissing, "when to ask the image's registry: `WHEN` missing, never or always")
	settingFlags(cmd, &f.wishes, true)
	fs.Var(durationValue(&f.timeout, ""), "timeout", "end the command after `DURATION` such as 30s (exit status 124)")
	fs.Var(durationValue(&f.grace, engine.DefaultGrace.String()), "grace", "time between SIGTERM and SIGKILL after a timeout: `DURATION`")

	f.commandFlags.register(cmd, "the workspace, else the home directory", "0:0")
	fs.StringVar(&f.hostname, "hostname", spec.DefaultHostname, "host `NAME` in the box")

	fs.StringVar(&f.network, "network", spec.None, "`MODE` none, or proxy: an HTTP and SOCKS5 proxy in the box")
	fs.StringArrayVar(&f.allow, "allow", nil, "let the proxy reach `NAME`, a name, address or CIDR with or without :PORT (repeatable; default: public)")
	fs.StringArrayVar(&f.deny, "deny", nil, "never let it reach `NAME` (repeatable)")
	fs.Var(limitsValue(&f.netLimits), "net-limit", "bound its use: `LIMITS` such as connections=64,bytes=2G,bandwidth=10M,idle=5m (repeatable)")
	fs.Var(injectValue(&f.inject), "inject", "send http://HOST by https with a secret: `RULE` 'HOST HEADER=file:PATH' or 'HOST HEADER=env:NAME' (repeatable)")
	fs.StringVar(&f.upstream, "upstream", "", "send all connections through another proxy: `URL` http://HOST:PORT or socks5://HOST:PORT")
	fs.StringVar(&f.upstreamLogin, "upstream-login", "", "read the user:password for --upstream from `FILE`, for each connection")
	fs.Var(publishValue(&f.publish), "publish", "lead from port HOST of 127.0.0.1, or a free one that stderr names, to the box: `[HOST:]PORT` (repeatable)")
	fs.BoolVar(&f.explain, "explain", false, "print on stderr what was refused to the command, and who has run it")
	fs.StringVar(&f.workspace, "workspace", "", "mount the host's `DIR` read-write at "+engine.WorkspaceTarget)
	fs.VarP(mountsValue(&f.mounts), "mount", "v", "mount `SRC:DST[:ro|rw]` or type=bind,source=SRC,target=DST[,readonly] (repeatable)")
	fs.Var(sizeValue(&f.outputLimit, "", true), "output-limit", "kill a command that writes more to stdout or stderr: `SIZE` (default: unlimited; 64M with --json)")

	fs.BoolVarP(&f.interactive, "interactive", "i", false, "pass boxd's stdin to the command (default: /dev/null)")
	fs.BoolVarP(&f.tty, "tty", "t", false, "give the command a terminal")
	fs.BoolVar(&f.json, "json", false, "print one JSON object with output, verdict and receipt on stdout")
	fs.BoolVar(&f.receipt, "receipt", false, "print what the command used on stderr")

	fs.BoolVar(&f.direct, "direct", false, "use no daemon")
	fs.StringVar(&f.socket, "socket", "", "have the daemon at `PATH` run the command, or fail (default: $BOXD_SOCKET or "+defaultSocket+", if it can)")
	fs.BoolVar(&f.remove, "rm", true, "accepted for compatibility; the box is always removed")
	fs.BoolVar(&f.allowDegraded, "allow-degraded", false, "continue if the host cannot enforce a limit")
	registerEngine(cmd, &f.initPath, &f.stateDir)
	registerDataDir(cmd, &f.dataDir)
	completeFlag(cmd, "image", completedImage)
	completeFlag(cmd, "pull", spec.PullMissing, spec.PullNever, spec.PullAlways)
	completeFlag(cmd, "timeout", "10s", "30s", "5m", "1h")
	completeFlag(cmd, "grace", "500ms", "2s", "10s")
	completeFlag(cmd, "output-limit", "1M", "16M", "64M", unlimited)
	completeFlag(cmd, "hostname")
	completeFlag(cmd, "publish")
	completeFlag(cmd, "upstream")
	completeFiles(cmd, "upstream-login")
	completeDirs(cmd, "workspace")
	completeFiles(cmd, "mount", "socket")
}

// completedImage is the only value of --image, with its description.
const completedImage = engine.HostImage + "\tthe host's system directories, read-only"

// registerEngine declares the flags that all commands with an engine share.
func registerEngine(cmd *cobra.Command, initPath, stateDir *string) {
	cmd.Flags().StringVar(initPath, "init", "", "`PATH` of boxd-init (default: $BOXD_INIT, or where boxd is installed)")
	cmd.Flags().StringVar(stateDir, "state-dir", "", "`DIR` for locks and leases (default: $BOXD_STATE_DIR, or "+defaultStateDir+")")
	completeFiles(cmd, "init")
	completeDirs(cmd, "state-dir")
}

// refuseEmpty refuses an empty value that was given to one of the named flags, so that an unset
// variable of a script does not turn into a default.
func refuseEmpty(fs *pflag.FlagSet, names ...string) error {
	for _, name := range names {
		if flag := fs.Lookup(name); flag.Changed && flag.Value.String() == "" {
			return &engine.FieldError{Field: "--" + name, Value: `""`, Rule: "must not be empty; leave the flag out for the default"}
		}
	}
	return nil
}

// textValue is a flag that is parsed as soon as it is given, so that an error names the flag.
type textValue struct {
	text  string // as given, or the default that the help shows
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

// boolValue is a textValue that needs no argument.
type boolValue struct{ *textValue }

func (boolValue) Type() string { return "bool" }

const unlimited = flagtext.Unlimited

// sizeValue is a size above 0, or "unlimited" if that is allowed.
func sizeValue(dst *int64, byDefault string, mayBeUnlimited bool) pflag.Value {
	return &textValue{byDefault, func(s string) error { return flagtext.Size(dst, s, mayBeUnlimited) }}
}

// durationValue is a duration above 0; a bare number is in seconds, as for timeout(1).
func durationValue(dst *time.Duration, byDefault string) pflag.Value {
	return &textValue{byDefault, func(s string) error { return flagtext.Time(dst, s) }}
}

func userValue(dst **engine.User) pflag.Value {
	return &textValue{"", func(s string) error {
		u, err := flagtext.User(s)
		*dst = &u
		return err
	}}
}

func publishValue(dst *[]spec.PublishWish) pflag.Value {
	return &textValue{"", func(s string) error {
		p, err := spec.ParsePublish(s)
		*dst = append(*dst, p)
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
