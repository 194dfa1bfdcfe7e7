// Package bench measures what boxes cost, for "boxd bench": see docs/benchmarks.md for what each row
// means.
//
// Every time is paired: samples of the bare operation (fork+exec on the host) and of the
// candidates alternate, so that the noise of the machine affects both alike, and the ratio
// is that of the two medians. Times are never tests: a missed target is no error, but a row
// that could not be measured is one.
package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/boxd/boxd/bench/report"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native"
	"golang.org/x/sys/unix"
)

// Options say what to measure, and with what.
type Options struct {
	Samples  int      // of a short row; longer ones take fewer. At least 10
	Only     []string // names of sections; empty is all that take seconds
	Full     bool     // also the sections that need hundreds of boxes
	Degraded bool     // go on where this host cannot enforce the default limits
	Boxd     string   // path of boxd
	Init     string   // path of boxd-init
	Self     string   // path of a program that calls Inside when its first argument is "inside"; static
	Runtimes native.Runtimes
	// Run calls Progress before each section, with its name, its number from 1, and how many there are.
	// It may be nil.
	Progress func(section string, n, of int)
}

// bench is one run.
type bench struct {
	ctx      context.Context // of the run
	n        int
	degraded bool
	boxd     string
	init     string
	self     string
	scratch  string // directory for state, bundles and mount sources
	runtimes native.Runtimes
	engine   *native.Engine
	current  string // the section
	report   *report.Report
}

// ErrInterrupted: the context of Run ended.
var ErrInterrupted = errors.New("interrupted")

// Run measures. Its report has the rows that could be measured even if it returns an error.
// Everything that it makes on the host is removed again, also if ctx is cancelled.
func Run(ctx context.Context, o Options) (r *report.Report, err error) {
	b := bench{ctx: ctx, n: o.Samples, degraded: o.Degraded, boxd: o.Boxd, init: o.Init, self: o.Self, runtimes: o.Runtimes, report: &report.Report{Format: report.Format}}
	if o.Samples < 10 {
		return nil, &engine.FieldError{Field: "--samples", Value: strconv.Itoa(o.Samples), Rule: "must be at least 10"}
	}
	for _, name := range o.Only {
		if !slices.Contains(Sections(), name) {
			return nil, &engine.FieldError{Field: "--only", Value: name, Rule: "must be one of " + strings.Join(Sections(), ", ")}
		}
	}
	var todo []section
	for _, s := range sections {
		if len(o.Only) == 0 && (o.Full || !s.full) || slices.Contains(o.Only, s.name) {
			todo = append(todo, s)
		}
	}
	began := time.Now()
	b.report.Began = began.Format(time.RFC3339)
	watch, err := b.examine(ctx)
	if err != nil {
		return nil, err
	}
	// It is below /run like boxd's own state. PID 1 of a box must be able to reach it.
	if b.scratch, err = os.MkdirTemp("/run", "boxd-bench-"); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.scratch)) }()
	if err := os.Chmod(b.scratch, 0o711); err != nil {
		return nil, err
	}
	unmount, err := onTmpfs(b.scratch)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(unmount(), err) }()
	for i, s := range todo {
		if o.Progress != nil {
			o.Progress(s.name, i+1, len(todo))
		}
		err := b.section(ctx, s)
		if ctx.Err() != nil {
			if errors.Is(err, context.Canceled) {
				err = nil
			}
			return b.report, errors.Join(ErrInterrupted, err)
		}
		if err != nil {
			return b.report, err
		}
	}
	b.report.Seconds = time.Since(began).Seconds()
	return b.report, errors.Join(watch.end(b.report), b.report.Err())
}

// onTmpfs makes sure that dir is on a tmpfs, as docs/config.md recommends. With systemd,
// everything below /run is.
func onTmpfs(dir string) (undo func() error, err error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return nil, os.NewSyscallError("statfs", err)
	}
	if fs.Type == unix.TMPFS_MAGIC {
		return func() error { return nil }, nil
	}
	if err := unix.Mount("boxd-bench", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0711"); err != nil {
		return nil, fmt.Errorf("mounting a tmpfs on %s: %w", dir, err)
	}
	return func() error { return os.NewSyscallError("umount", unix.Unmount(dir, 0)) }, nil
}

// section is a group of rows that are measured together.
type section struct {
	name    string
	full    bool // only with Options.Full, or by name
	measure func(*bench, context.Context)
}

var sections = []section{
	{"exec", false, (*bench).warmExec},
	{"rate", false, (*bench).throughput},
	{"create", false, (*bench).coldCreate},
	{"pool", false, (*bench).poolCreate},
	{"zygote", false, (*bench).warmPython},
	{"mount", false, (*bench).liveMount},
	{"process", false, (*bench).processes},
	{"knob", false, (*bench).knobs},
	{"inside", false, (*bench).insides},
	{"scale", false, (*bench).scale},
	{"engines", false, (*bench).engines},
	{"memory", false, (*bench).idleMemory},
	{"images", false, (*bench).imageRows},
	{"daemon", false, (*bench).daemonExec},
	{"relay", false, (*bench).streams},
	{"rush", false, (*bench).rushed},
	{"langbot", false, (*bench).langbots},
	{"network", false, (*bench).network},
	{"idle", true, (*bench).manyIdle},
	{"parallel", true, (*bench).manyParallel},
	{"crowd", true, (*bench).crowded},
	{"relays", true, (*bench).manyRelays},
}

// Sections lists the names of all sections.
func Sections() (names []string) {
	for _, s := range sections {
		names = append(names, s.name)
	}
	return names
}

// section measures with a new launcher.
func (b *bench) section(ctx context.Context, s section) (err error) {
	b.current = s.name
	b.engine, err = native.Start(ctx, native.Options{InitPath: b.init, StateDir: b.stateDir(), Runtimes: b.runtimes})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.engine.Close()) }()
	s.measure(b, ctx)
	return nil
}

func (b *bench) stateDir() string { return filepath.Join(b.scratch, "state") }

// spec is a box with the default limits.
func (b *bench) spec() engine.Spec { return engine.Spec{AllowDegraded: b.degraded} }

// command is the command of all rows.
const command = "/bin/true"

// execTrue runs the command in a box.
func execTrue(ctx context.Context, box engine.Box) error {
	return exitedZero(engine.Run(ctx, box, engine.Command{Args: []string{command}}))
}

func exitedZero(r engine.Result, err error) error {
	if err == nil && (r.Verdict != engine.Exited || r.ExitCode != 0) {
		err = fmt.Errorf("running %q: %s %d", command, r.Verdict, r.ExitCode)
	}
	return err
}
