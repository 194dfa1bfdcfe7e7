// Package quickrun is what boxd run does before the rest of boxd is initialised, which takes longer than a command does.
// For the command lines that people use most, while a daemon runs, that is everything: it asks the daemon. The language initialises
// packages in the order of their import paths, as soon as what they import is initialised, so this one
// comes before most others if it imports little.
//
// What is not quick is left to package cli, which does the same in full: a command line that is not understood, no
// daemon, a daemon that refuses. If package cli is going to start a launcher, the launcher's program is copied into
// memory meanwhile. The two read the values of flags with the same code, and test/e2e compares what
// commands do that either of them runs.
package quickrun

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/flagtext"
	"github.com/boxd/boxd/internal/installed"
	"github.com/boxd/boxd/internal/oneline"
	"github.com/boxd/boxd/internal/oneshot"
	"github.com/boxd/boxd/internal/sealed"
	"github.com/boxd/boxd/internal/sigwatch"
)

func init() {
	if len(os.Args) < 3 || os.Args[1] != "run" {
		return
	}
	if status, ok := run(os.Args[2:]); ok {
		os.Exit(status)
	}
	if os.Geteuid() == 0 && launches(os.Args[2:], os.LookupEnv) {
		if path, _ := installed.Find(installed.Init); path != "" {
			sealed.Begin(path, installed.Init)
		}
	}
}

// launches reports whether package cli is going to start the launcher that is installed, as far as that can be
// told without reading the whole command line.
func launches(args []string, lookup func(string) (string, bool)) bool {
	if init, _ := lookup("BOXD_INIT"); init != "" {
		return false
	}
	socket, _, err := oneshot.Find("", lookup)
	none, ok := errors.AsType[*oneshot.Unused](err)
	alone := ok && none.Absent
	if err == nil {
		_, err = os.Stat(socket)
		alone = errors.Is(err, fs.ErrNotExist)
	}
	for _, arg := range args {
		switch name, _, _ := strings.Cut(arg, "="); name {
		case "--direct", "--state-dir":
			alone = true
		case "--init", "--socket", "--help", "-h":
			return false
		case "--":
			return alone
		}
	}
	return alone
}

// line is a command line of boxd run.
type line struct {
	spec        spec.Spec
	run         apitypes.RunRequest // without the box
	socket      string
	interactive bool
}

// Parse returns what boxd run is asked for with args. ok is false if that takes package cli.
func Parse(args []string, lookup func(string) (string, bool)) (request *apitypes.RunRequest, ok bool) {
	l, ok := parse(args, lookup)
	if !ok {
		return nil, false
	}
	request, err := oneshot.Request(&l.spec, l.run)
	return request, err == nil
}

// parse reads flags as package pflag does, but only those that it knows, in the forms --name value, --name=value,
// and -n value.
func parse(args []string, lookup func(string) (string, bool)) (l line, ok bool) {
	var wishes spec.Wishes
	var env flagtext.Environment
	var shell bool
	user := spec.User{}
	hostname := spec.DefaultHostname
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		name, value, given := strings.Cut(args[0], "=")
		args = args[1:]
		if name == "--" {
			if given {
				return l, false
			}
			break
		}
		if !strings.HasPrefix(name, "--") && (len(name) != 2 || given) {
			return l, false
		}
		if on := map[string]*bool{"-i": &l.interactive, "--interactive": &l.interactive, "--mkdir": &l.run.Mkdir, "--shell": &shell}[name]; on != nil {
			if given {
				return l, false
			}
			*on = true
			continue
		}
		setting := slices.IndexFunc(spec.Table, func(t *spec.Setting) bool { return t.Box && "--"+t.Flag == name })
		if !given {
			switch {
			case setting >= 0 && spec.Table[setting].Flag == "rw-rootfs":
				value = "true"
			case len(args) == 0:
				return l, false
			default:
				value, args = args[0], args[1:]
			}
		}
		var err error
		switch {
		case setting >= 0:
			t := spec.Table[setting]
			err = flagtext.Setting(t, t.Of(&wishes), value)
		case value == "":
			return l, false
		case name == "--timeout":
			err = flagtext.Time((*time.Duration)(&l.run.Timeout), value)
		case name == "--grace":
			err = flagtext.Time((*time.Duration)(&l.run.Grace), value)
		case name == "--output-limit":
			err = flagtext.Size((*int64)(&l.run.OutputLimit), value, true)
		case name == "--env" || name == "-e":
			err = env.Set(value, lookup)
		case name == "--workdir" || name == "-w":
			l.run.Cwd = value
		case name == "--user" || name == "-u":
			user, err = flagtext.User(value)
		case name == "--hostname":
			hostname = value
		case name == "--socket":
			l.socket = value
		default:
			return l, false
		}
		if err != nil {
			return l, false
		}
	}
	if len(args) == 0 || shell && len(args) != 1 || wishes.Engine != nil || wishes.Isolation != nil || wishes.UpperSize != nil {
		return l, false
	}
	if l.run.Argv = args; shell {
		l.run.Argv = []string{"sh", "-c", args[0]}
	}
	l.run.OutputLimit = max(0, l.run.OutputLimit) // which is how "unlimited" was noted
	l.run.Env = oneshot.Env(env.List)
	var s spec.Settings
	s.Merge(&wishes, nil)
	l.spec = s.Spec()
	l.spec.Hostname, l.spec.User = hostname, user
	l.spec = l.spec.WithDefaults()
	return l, l.spec.Validate() == nil
}

// run runs a command line. ok is false if that is left to package cli; nothing has run then.
func run(args []string) (status int, ok bool) {
	l, ok := parse(args, os.LookupEnv)
	if !ok {
		return 0, false
	}
	q, err := oneshot.Request(&l.spec, l.run)
	if err != nil {
		return 0, false
	}
	socket, checked, err := oneshot.Find(l.socket, os.LookupEnv)
	if err != nil {
		return 0, false
	}
	r, err := oneshot.Ask(socket, checked, q)
	if err != nil {
		return 0, false
	}
	defer r.Close()
	signals := sigwatch.New(nil)
	var stdin io.Reader
	if l.interactive {
		stdin = os.Stdin
	}
	result, err := converse(r, signals, stdin, q.OutputLimit > 0)
	signals.Stop() // before the question whether one came: later ones have their usual effect
	sig := signals.Received()
	none, refused := errors.AsType[*oneshot.Unused](err)
	switch {
	case err != nil && sig != 0:
		say("boxd: stopped by " + sigwatch.Name(sig))
		return 128 + int(sig), true
	case refused && !none.Settled():
		return 0, false
	case err != nil:
		say("boxd: " + oneline.Printable(oneline.Error(err)))
		if refused {
			return none.Status(), true
		}
		return oneshot.StatusFailed, true
	}
	if text := r.Warning(); text != "" {
		say(text)
	}
	if text := oneshot.Ending(result.Verdict, result.Limit, result.Receipt.OOMKills); text != "" {
		say(text)
	}
	return oneshot.Status(result.Verdict, result.Status, sig), true
}

// converse has the command run and returns its result. The caller stops signals.
func converse(r *oneshot.Run, signals *sigwatch.Watch, stdin io.Reader, counted bool) (*apitypes.ExecResult, error) {
	signals.Start()
	if signals.Received() != 0 { // nothing has run, and nothing need
		return nil, context.Canceled
	}
	if err := r.Start(stdin, os.Stdout, os.Stderr, counted); err != nil {
		return nil, err
	}
	signals.ForwardTo(r.Signal)
	stop := context.AfterFunc(signals.Context, r.Cancel)
	defer stop()
	return r.Wait()
}

// say writes a line to stderr. If that fails, there is nowhere to report it.
func say(text string) { _, _ = os.Stderr.WriteString(text + "\n") }
