// Command bench measures what boxes cost and prints one table: see
// docs/benchmarks.md for what each row means.
//
// Every time is paired: samples of the bare operation (fork+exec on the host) and of the
// candidates alternate, so that the noise of the machine affects both alike, and the ratio
// is that of the two medians. Times are never tests: a missed target does not change the
// exit status, but a row that could not be measured does.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native"
	"golang.org/x/sys/unix"
)

// bench is one run.
type bench struct {
	n        int  // samples of a short row; longer ones take fewer
	full     bool // also the rows that need many boxes
	degraded bool
	only     string // names of sections, separated by commas; empty is all
	bin      string // directory of boxd and boxd-init
	scratch  string // directory for state, bundles and mount sources
	runtimes native.Runtimes
	host     host
	engine   *native.Engine
	table    table
}

func main() {
	var b bench
	self, err := os.Executable()
	flag.IntVar(&b.n, "n", 400, "samples of a short row; longer rows take a fraction")
	flag.BoolVar(&b.full, "full", false, "also 500 idle boxes at once, and 100 boxes created in parallel")
	flag.BoolVar(&b.degraded, "allow-degraded", false, "go on where this host cannot enforce the default limits")
	flag.StringVar(&b.only, "only", "", "measure these `SECTIONS` alone: "+strings.Join(sectionNames(), ","))
	flag.StringVar(&b.bin, "bin", filepath.Dir(self), "`DIR` of boxd and boxd-init")
	flag.StringVar(&b.runtimes.ContainerdAddress, "containerd", "", "measure the containerd at this `SOCKET` instead of the host's")
	flag.Parse()
	if err == nil {
		err = b.run(context.Background())
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(1)
	}
}

func (b *bench) run(ctx context.Context) (err error) {
	if b.n < 10 {
		return fmt.Errorf("-n %d: must be at least 10", b.n)
	}
	for name := range strings.SplitSeq(b.only, ",") {
		if b.only != "" && !slices.Contains(sectionNames(), name) {
			return fmt.Errorf("-only %q: must be one of %s", name, strings.Join(sectionNames(), ", "))
		}
	}
	if b.host, err = examine(); err != nil {
		return err
	}
	// It is below /run like boxd's own state. PID 1 of a box must be able to reach it.
	if b.scratch, err = os.MkdirTemp("/run", "boxd-bench-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.scratch)) }()
	if err := os.Chmod(b.scratch, 0o711); err != nil {
		return err
	}
	unmount, err := onTmpfs(b.scratch)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(unmount(), err) }()
	for _, s := range sections {
		if !b.wants(s) {
			continue
		}
		if err := b.section(ctx, s.measure); err != nil {
			return err
		}
	}
	b.table.print(os.Stdout, b.host.String())
	return b.table.err
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
	full    bool // only with -full, or by name
	measure func(*bench, context.Context)
}

var sections = []section{
	{"exec", false, (*bench).warmExec},
	{"rate", false, (*bench).throughput},
	{"create", false, (*bench).coldCreate},
	{"pool", false, (*bench).poolCreate},
	{"mount", false, (*bench).liveMount},
	{"process", false, (*bench).processes},
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

func sectionNames() (names []string) {
	for _, s := range sections {
		names = append(names, s.name)
	}
	return names
}

func (b *bench) wants(s section) bool {
	if b.only == "" {
		return b.full || !s.full
	}
	return slices.Contains(strings.Split(b.only, ","), s.name)
}

// section measures with a new launcher.
func (b *bench) section(ctx context.Context, measure func(*bench, context.Context)) (err error) {
	b.engine, err = native.Start(ctx, native.Options{
		InitPath: filepath.Join(b.bin, "boxd-init"),
		StateDir: b.stateDir(),
		Runtimes: b.runtimes,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.engine.Close()) }()
	measure(b, ctx)
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
