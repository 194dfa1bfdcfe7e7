package launcher

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/cgroups"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native/programs"
	"github.com/boxd/boxd/engine/oci"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/mounts"
	"github.com/boxd/boxd/rootfs"
	"golang.org/x/sys/unix"
)

// gvisor starts PID 1 as native does, and has it start gVisor's sandbox, in which the commands of
// the box run. So everything of the box but its commands is as in any other: what stands between a
// command and the host is the kernel of the sandbox, and behind it the namespaces of the box.
//
// PID 1 is not the last but the first user of the box, since runsc needs the rights of root in the
// user namespace of the box. It has no seccomp filter: no command can reach it, and the sandbox has
// filters of its own.
type gvisor struct {
	ociPrograms
	native
	launcher *Launcher
	dir      string // of a copy of boxd-agent, in the launcher's own tmpfs

	copying sync.Mutex // held to make the copy
	proving sync.Mutex // guards proof
	proof   *proof     // the last one
}

// isGVisor reports whether commands of a box run behind a kernel of its own.
func isGVisor(s engine.Spec) bool { return s.Isolation == spec.IsolationGVisor }

// sandboxCaps are the capabilities of PID 1 of a gVisor box: what runsc needs to make namespaces
// and mounts for the sandbox, and what its gofer has over files (goferCaps in runsc/cmd/gofer.go).
var sandboxCaps = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_SETPCAP",
	"CAP_SYS_CHROOT", "CAP_SYS_PTRACE", "CAP_SYS_ADMIN",
}

// sandboxCapMask is sandboxCaps as in capsOf: bits 0 to 8, 18, 19 and 21 but not 9 to 17.
const sandboxCapMask = "00000000002c01ff"

// The least memory with which a sandbox is useful, and what its own processes and threads need on
// the host beyond those of the commands. A thread of a command is two processes there at most.
const (
	minSandboxMemory = 128 << 20
	sandboxPIDs      = 512
	pidsPerGuest     = 4
)

// checkGVisor refuses what boxd does not do in a gVisor box.
func checkGVisor(s engine.Spec) error {
	switch m := s.Limits.Memory; {
	case s.Unpacks:
		return fmt.Errorf("unpacking layers of images with isolation %q: %w", s.Isolation, engine.ErrUnenforceable)
	case m != engine.Unlimited && m < minSandboxMemory:
		return &engine.FieldError{Field: "memory", Value: spec.FormatSize(m), Rule: fmt.Sprintf("must be at least %s with isolation %q, whose kernel counts to it", spec.FormatSize(minSandboxMemory), s.Isolation)}
	}
	return nil
}

// limitsOf returns the limits of a box's cgroup. The kernel of a gVisor box counts the processes of
// commands itself (RLIMIT_NPROC); the host's pids limit bounds those of the sandbox.
func limitsOf(s engine.Spec, l engine.Limits) cgroups.Limits {
	c := groupLimits(l, s.AllowDegraded)
	if isGVisor(s) && c.PIDs > 0 {
		c.PIDs = c.PIDs*pidsPerGuest + sandboxPIDs
	}
	return c
}

// init returns a mount of a directory with a copy of boxd-agent, which sandboxes share. They could
// not map the sealed one, and a static program of glibc does not start from a descriptor alone.
func (g *gvisor) init() (*os.File, error) {
	g.copying.Lock()
	defer g.copying.Unlock()
	path := filepath.Join(g.dir, programs.Agent)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		if err := g.copyAgent(path); err != nil {
			return nil, err
		}
	}
	tree, err := linux.OpenTree(nil, g.dir, unix.OPEN_TREE_CLONE)
	if err != nil {
		return nil, err
	}
	attrs := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}
	if err := linux.MountSetattr(tree, false, attrs); err != nil {
		tree.Close()
		return nil, err
	}
	return tree, nil
}

func (g *gvisor) copyAgent(path string) error {
	if err := os.MkdirAll(g.dir, 0o755); err != nil {
		return err
	}
	agent, err := g.programs.agent.get()
	if err != nil {
		return err
	}
	self, err := os.Open(linux.FdPath(agent))
	if err != nil {
		return err
	}
	defer self.Close()
	fresh, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o555)
	if err != nil {
		return err
	}
	_, err = io.Copy(fresh, self)
	return cmp.Or(errors.Join(err, fresh.Close()), os.Rename(path+".new", path))
}

// withMaker adds user and group 0 of a box to a map of one owner. gVisor makes every file as them, and
// then gives it to the user who made it; the kernel makes none for an ID that a mount does not map.
// On disk they are IDs of no user of the host.
func withMaker(m mounts.IDMap, base int) mounts.IDMap {
	with := func(ranges []mounts.IDRange) []mounts.IDRange {
		for _, r := range ranges {
			if r.Host == uint32(base) || isShared(r.Disk) {
				return ranges
			}
		}
		return append(slices.Clip(ranges), mounts.IDRange{Disk: sharedBase, Host: uint32(base), Size: 1})
	}
	return mounts.IDMap{UIDs: with(m.UIDs), GIDs: with(m.GIDs)}
}

// sandbox describes the sandbox of box b to its agent. The caller closes the files.
func (g *gvisor) sandbox(b *box) (*wire.SandboxMsg, []*os.File, error) {
	program := g.program(false)
	if program.err != nil {
		return nil, nil, fmt.Errorf("%w: %w", engine.ErrNoEngine, program.err)
	}
	runsc, err := os.Open(program.Path)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", engine.ErrNoEngine, err)
	}
	init, err := g.init()
	if err != nil {
		runsc.Close()
		return nil, nil, fmt.Errorf("making boxd-agent readable in a sandbox: %w", err)
	}
	files := []*os.File{runsc, init}
	guest := oci.Guest{
		Hostname: b.spec.Hostname, Root: wire.SandboxRoot, Init: wire.SandboxInit, State: wire.SandboxState, Bundle: wire.SandboxBundle, Writable: b.spec.WritableRoot,
		Mounts: []oci.GuestMount{{Target: "/tmp"}, {Target: rootfs.HomeDir}, {Target: "/dev/shm", NoExec: true}},
	}
	for _, m := range spec.InOrder(b.spec.Mounts) {
		guest.Mounts = append(guest.Mounts, oci.GuestMount{Target: m.Target, ReadOnly: m.ReadOnly})
	}
	m := &wire.SandboxMsg{
		Run: guest.RunArgs(wire.SandboxPID),
		Exec: guest.ExecArgs(wire.SandboxProcess, [][2]int{
			{wire.ExecOrders, wire.GuestOrders}, {wire.ExecReports, wire.GuestReports}, {wire.ExecStdin, 0}, {wire.ExecStdout, 1}, {wire.ExecStderr, 2},
		}),
	}
	m.Config, err = json.Marshal(guest.Config())
	if err == nil {
		m.Process, err = json.Marshal(guest.Process())
	}
	if err != nil {
		linux.CloseAll(files)
		return nil, nil, err
	}
	// The sandbox lives in a slot of its own, under the limits of the box, until the box ends.
	slot, err := b.newSlot()
	if err == nil {
		b.sandbox = slot.Name
		err = b.mark(slot.Name, "")
	}
	if err != nil {
		linux.CloseAll(files)
		return nil, nil, err
	}
	described, born := describe(slot, nil)
	m.Tasks = uint32(described.Tasks)
	linux.CloseAll(born[1+described.Tasks:]) // the figures of the slot alone: no one reads them
	return m, append(files, born[:1+described.Tasks]...), nil
}

// outOfMemory reports whether the box ended because the kernel has killed a process of its sandbox for
// memory: then runsc kills the others (unexpectedStubExit in its platform systrap). Such a kill of a helper
// of ours, in the slot of a command, ends that command only.
func (b *box) outOfMemory() (bool, error) {
	if b.sandbox == "" {
		return false, nil // not known
	}
	slot, err := b.group.Slot(b.sandbox)
	if err == nil {
		err = slot.Open()
	}
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // it is gone with the box
	}
	if err != nil {
		return false, err
	}
	stats := cgroups.OpenStats(slot.Stats)
	slot.Stats = nil // stats owns them
	u, err := stats.Read()
	stats.Close()
	return u.OOMKills != nil && *u.OOMKills > 0, errors.Join(err, slot.Close())
}

// How long a sandbox and one command in it may take, and how long a failure counts. A success counts
// until the program is another one, or this launcher ends.
const (
	proofTime = 5 * time.Second
	proofAge  = time.Minute
)

// proof is an attempt at a sandbox.
type proof struct {
	file oci.File // the program
	work *work
	over chan struct{} // closed when what follows is valid
	err  error
	when time.Time
	// tried: a sandbox was started. Otherwise nothing is known: the attempt got no turn.
	tried bool
}

const unknownProof = "whether a gVisor sandbox works here is not known yet"

// holds reports whether p answers for a program, or will.
func (p *proof) holds(file oci.File) bool {
	if p == nil {
		return false
	}
	select {
	case <-p.over:
		return p.tried && p.file == file && (p.err == nil || time.Since(p.when) < proofAge)
	default:
		return true
	}
}

// look implements boxRuntime. For a list of engines, it proves that a sandbox works: whether the kernel,
// the processor and what surrounds this host allow it, no version tells.
func (g *gvisor) look(fresh bool) (string, error) {
	name, err := g.ociPrograms.look(fresh)
	if err != nil || !fresh {
		return name, err
	}
	file := g.program(false).file
	g.proving.Lock()
	p := g.proof
	if !p.holds(file) {
		p = g.prove(file)
		g.proof = p
	}
	g.proving.Unlock()
	select {
	case <-p.over:
		err = p.err
	case <-time.After(proofTime + time.Second): // it has no turn: once it has one, it takes no longer
		err = fmt.Errorf("%s: %s", unknownProof, g.launcher.works.textOf(p.work))
	}
	if err != nil && !errors.Is(err, engine.ErrNoEngine) {
		err = fmt.Errorf("%w: %w", engine.ErrNoEngine, err)
	}
	return name, err
}

// prove starts to build a probe box and to run a command in it, which ends within proofTime once the box has its
// turn among others. What then still comes of the box is removed in the background.
func (g *gvisor) prove(file oci.File) *proof {
	l := g.launcher
	w := &work{what: "waiting for the turn of a probe box"}
	l.works.add(w)
	w.makes("probe-"+strings.ToLower(rand.Text()), true)
	p := &proof{file: file, work: w, over: make(chan struct{})}
	began, result := make(chan struct{}), make(chan error, 1)
	go func() {
		defer w.end()
		b, err := l.boxOf(w, engine.Spec{ID: w.box, Engine: spec.EngineOCI, Isolation: spec.IsolationGVisor, AllowDegraded: true})
		if err == nil {
			err = w.enter(l.creating[w.kind])
		}
		if err != nil {
			result <- err
			return
		}
		defer w.leave()
		p.tried = true
		close(began)
		if err = l.create(w, b); err == nil {
			err = b.runNothing()
			_ = l.abandon(b, err) // the next launcher removes and reports what is left
		}
		result <- err
	}()
	l.requests.Go(func() { // so that the launcher waits for it, unless it hangs
		defer close(p.over)
		var err error
		select {
		case <-began:
			select {
			case err = <-result:
			case <-time.After(proofTime):
				err = fmt.Errorf("one that runs one command is not there after %v, and was killed: %s", proofTime, l.works.textOf(w))
				w.refuse(fmt.Sprintf("it took more than %v", proofTime))
			}
		case err = <-result:
		}
		p.when = time.Now()
		switch {
		case err != nil && !p.tried:
			p.err = fmt.Errorf("%s: %w", unknownProof, err)
		case err != nil:
			p.err = fmt.Errorf("a gVisor sandbox does not work here: %w", err)
		}
	})
	return p
}

// runNothing runs one command of our own in the box, and returns an error unless it exits with 0.
func (b *box) runNothing() error {
	defer b.work.begin("running a command", "", only(b.pid))()
	sock, err := b.connect()
	if err != nil {
		return err
	}
	conn, err := wire.FileConn(sock)
	if err != nil {
		return err
	}
	defer conn.Close()
	b.work.onRefusal(func() { conn.Close() })
	slot, err := b.newSlot()
	if err != nil {
		return err
	}
	described, files := describe(slot, nil)
	defer linux.CloseAll(files)
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	m := wire.SpawnMsg{Args: []string{programs.Agent, "version"}, Self: true, Dir: "/", UID: engine.MaxID, GID: engine.MaxID, Tasks: uint32(described.Tasks)}
	fds := append([]*os.File{null, null, null}, files[:1+described.Tasks]...)
	if err := conn.Send(wire.TypeSpawn, 1, m.Marshal(), fds...); err != nil {
		return err
	}
	for {
		frame, err := conn.Receive()
		if err != nil {
			return fmt.Errorf("running a command in it: %w", err)
		}
		frame.Close()
		var failed wire.FailedMsg
		var exited wire.ExitedMsg
		switch {
		case frame.Type == wire.TypeStarted:
		case frame.Type == wire.TypeFailed && failed.Unmarshal(frame.Body) == nil:
			return fmt.Errorf("running a command in it: %w", &failed)
		case frame.Type == wire.TypeExited && exited.Unmarshal(frame.Body) == nil && exited.Status == 0:
			return nil
		default:
			return fmt.Errorf("running a command in it: it ended with %x: %w", frame.Body, wire.ErrProtocol)
		}
	}
}
