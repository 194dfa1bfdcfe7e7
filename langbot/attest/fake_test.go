package attest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/boxd/boxd/engine"
)

// fake is an engine and a storage whose boxes give the answers that a test sets, and otherwise those
// of a sound host.
type fake struct {
	engine.Service
	engine.Storage

	// The answers to give instead of sound ones, by name of the script.
	answers map[string]func(args []string) (engine.Result, string)
	// Errors of calls, by name.
	errs   map[string]error
	states []engine.VolumeState
	hang   chan struct{} // Create waits for it, unless it is nil
	stuck  bool          // commands of the box go on until their context ends

	mu      sync.Mutex
	calls   []string
	specs   []engine.Spec
	live    int             // boxes
	volumes map[string]bool // that exist
	limits  map[string]int64
}

func newFake() *fake {
	return &fake{answers: map[string]func([]string) (engine.Result, string){}, errs: map[string]error{}, volumes: map[string]bool{}, limits: map[string]int64{}}
}

func (f *fake) call(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, name)
	return f.errs[name]
}

func (f *fake) Create(ctx context.Context, spec engine.Spec) (engine.LiveBox, error) {
	if f.hang != nil {
		select {
		case <-f.hang:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	err := f.call("create")
	if err == nil && spec.WritableRoot {
		err = f.errs["writable root"]
	}
	if err == nil && len(spec.Mounts) > 0 {
		err = f.call("mount")
	}
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.live++
	f.specs = append(f.specs, spec)
	return &fakeBox{fake: f}, nil
}

func (f *fake) MakeVolume(_ context.Context, v engine.Volume) error {
	if err := f.call("make " + v.Name); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.volumes[v.Name] = true
	return v.Validate()
}

func (f *fake) RemoveVolume(ctx context.Context, name string) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.live > 0 {
		return errors.New("a box has it mounted")
	}
	delete(f.volumes, name)
	return nil
}

func (f *fake) Volumes(context.Context) ([]engine.VolumeState, error) {
	return f.states, f.call("volumes")
}

func (f *fake) OpenDirectory(_ context.Context, d engine.Directory) (*os.File, error) {
	if err := f.call("open"); err != nil {
		return nil, err
	}
	if d.Make {
		if err := os.MkdirAll(d.Path, 0o755); err != nil {
			return nil, err
		}
	}
	return os.Open(d.Path)
}

func (f *fake) LimitDirectory(_ context.Context, d engine.Directory, bytes, _ int64) error {
	if err := f.call("limit"); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.limits[d.Path] = bytes
	return nil
}

type fakeBox struct {
	engine.LiveBox
	fake *fake
}

func (b *fakeBox) ID() string { return "probe" }

func (b *fakeBox) Update(context.Context, engine.Change) error { return b.fake.call("update") }

func (b *fakeBox) Remove(ctx context.Context) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	b.fake.mu.Lock()
	defer b.fake.mu.Unlock()
	b.fake.live--
	return b.fake.errs["remove"]
}

func (b *fakeBox) Start(ctx context.Context, cmd engine.Command) (engine.Process, error) {
	if b.fake.stuck {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	name, args := scriptOf(cmd.Args)
	if err := b.fake.call(name); err != nil {
		return nil, err
	}
	answer := b.fake.answers[name]
	if answer == nil {
		answer = sound[name]
	}
	r, out := answer(args)
	_, _ = io.WriteString(cmd.Stdout, out)
	return fakeProcess{result: r}, nil
}

type fakeProcess struct {
	engine.Process
	result engine.Result
}

func (p fakeProcess) Wait() (engine.Result, error) { return p.result, nil }

// scriptOf names the command, and returns the arguments of a script.
func scriptOf(args []string) (string, []string) {
	if args[0] != "sh" {
		return args[0], args[1:]
	}
	for name, script := range map[string]string{
		"namespaces": scriptNamespaces, "mounts": scriptMounts, "network": scriptNetwork, "fill": scriptFill, "quota": scriptQuota,
		"inodes": scriptInodes, "cgroup": scriptCgroup, "forks": scriptForks, "spin": scriptSpin,
	} {
		if script == args[2] {
			return name, args[4:]
		}
	}
	panic("unknown script: " + args[2])
}

func says(lines ...string) func([]string) (engine.Result, string) {
	return func([]string) (engine.Result, string) {
		return engine.Result{Verdict: engine.Exited}, strings.Join(lines, "\n") + "\n"
	}
}

func ends(v engine.Verdict) func([]string) (engine.Result, string) {
	return func([]string) (engine.Result, string) { return engine.Result{Verdict: v, ExitCode: 1}, "" }
}

var (
	soundNamespaces = []string{"user=user:[1]", "mnt=mnt:[2]", "pid=pid:[3]", "ipc=ipc:[4]", "uts=uts:[5]", "net=net:[6]", "uid=0 100000"}
	soundMounts     = []string{"dir=/ 0:1", "dir=/tmp 0:2", "made=/tmp", "end=ok"}
	soundNetwork    = []string{
		"dev=Inter-|   Receive", "dev= face |bytes", "dev=    lo:       0", "route=Iface\tDestination", "tcp=  sl  local_address",
		"ipv6_route=0000 00 0000 00 0000 ffffffff 00000001 00000000 00200200       lo", "unix=Num       RefCount", "end=ok",
	}
)

var sound = map[string]func([]string) (engine.Result, string){
	"namespaces": says(soundNamespaces...),
	"mounts":     says(soundMounts...),
	"network":    says(soundNetwork...),
	"fill": func(args []string) (engine.Result, string) {
		var b strings.Builder
		for _, dir := range args[1:] {
			fmt.Fprintf(&b, "fill=%s 1 %d\nfull=%s\n", dir, tmpSize-4096, dir)
		}
		return engine.Result{Verdict: engine.Exited}, b.String()
	},
	"quota": func(args []string) (engine.Result, string) {
		var b strings.Builder
		fmt.Fprintf(&b, "fill=%s 1 %d\nfull=%s\n", args[1], volumeSize-4096, args[1])
		for _, dir := range args[2:] {
			fmt.Fprintf(&b, "other=%s\n", dir)
		}
		return engine.Result{Verdict: engine.Exited}, b.String()
	},
	"inodes": func(args []string) (engine.Result, string) {
		var b strings.Builder
		for _, dir := range args[1:] {
			fmt.Fprintf(&b, "inodes=%s %d\nfull=%s\n", dir, volumeInodes-2, dir)
		}
		return engine.Result{Verdict: engine.Exited}, b.String()
	},
	"cgroup": says("cgroup=0::/boxd/x.y/work/7"),
	"dd":     ends(engine.OOM),
	"forks":  ends(engine.PIDsLimit),
	"spin":   spun(time.Millisecond),
}

func spun(d time.Duration) func([]string) (engine.Result, string) {
	return func([]string) (engine.Result, string) {
		return engine.Result{Verdict: engine.Exited, Receipt: engine.Receipt{Throttled: &d}}, ""
	}
}

// without returns lines without those that start with prefix, followed by others.
func without(lines []string, prefix string, others ...string) func([]string) (engine.Result, string) {
	var kept []string
	for _, l := range lines {
		if !strings.HasPrefix(l, prefix) {
			kept = append(kept, l)
		}
	}
	return says(append(kept, others...)...)
}

// instead returns the sound answer of a script with old replaced.
func instead(name, old, with string) func([]string) (engine.Result, string) {
	return func(args []string) (engine.Result, string) {
		r, out := sound[name](args)
		if !strings.Contains(out, old) {
			panic(name + " does not say " + old)
		}
		return r, strings.ReplaceAll(out, old, with)
	}
}

// dial connects to the listener of the daemon, as a box that shares its network can.
func dial(args []string) (engine.Result, string) {
	c, err := net.Dial("tcp4", "127.0.0.1:"+args[0])
	if err != nil {
		panic(err)
	}
	c.Close()
	return sound["network"](args)
}

// writeOn leaves the file of the box on the host, in dir.
func writeOn(dir string) func([]string) (engine.Result, string) {
	return func(args []string) (engine.Result, string) {
		if err := os.WriteFile(filepath.Join(dir, args[1]), nil, 0o600); err != nil {
			panic(err)
		}
		return sound["mounts"](args)
	}
}

// seesPort adds the daemon's listener to the box's sockets.
func seesPort(args []string) (engine.Result, string) {
	port, err := strconv.Atoi(args[0])
	if err != nil {
		panic(err)
	}
	return without(soundNetwork, "x", fmt.Sprintf("tcp=   0: 0100007F:%04X 00000000:0000 0A", port))(args)
}

// seesAbstract adds the daemon's abstract sockets to the box's.
func seesAbstract(args []string) (engine.Result, string) {
	p, err := os.ReadFile("/proc/self/net/unix")
	if err != nil {
		panic(err)
	}
	var lines []string
	for line := range strings.Lines(string(p)) {
		lines = append(lines, "unix="+strings.TrimSpace(line))
	}
	return without(soundNetwork, "unix", lines...)(args)
}
