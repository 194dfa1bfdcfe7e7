package launcher

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/oci"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/rootfs"
	"golang.org/x/sys/unix"
)

// ociRuntime is an OCI runtime, a program that this process starts for each box.
type ociRuntime struct {
	ociPrograms
	programs *boxPrograms
}

// ociPrograms finds the program of a runtime.
type ociPrograms struct {
	name string // such as "runc"
	path string // named by root; empty: name, wherever it is

	looking sync.Mutex // held to look, so that several creates do so once
	found   ociProgram
}

// ociProgram is what was found out about the program of a runtime.
type ociProgram struct {
	oci.Runtime
	file oci.File
	info oci.Info
	err  error
	when time.Time
}

func (o *ociPrograms) look(fresh bool) (string, error) {
	p := o.program(fresh)
	if p.err != nil {
		return p.info.String(), fmt.Errorf("%w: %w", engine.ErrNoEngine, p.err)
	}
	return p.info.String(), nil
}

// program finds and asks the program, unless that was done lately.
func (o *ociPrograms) program(fresh bool) ociProgram {
	o.looking.Lock()
	defer o.looking.Unlock()
	now := ociProgram{when: time.Now()}
	if now.Path = o.path; now.Path == "" {
		now.Path, now.err = oci.Find(o.name)
	}
	if now.err == nil {
		now.file, now.err = oci.Check(now.Path)
	}
	last := o.found
	holds := soundTime
	if last.err != nil {
		holds = unsoundTime
	}
	if fresh {
		holds = freshTime
	}
	if now.err == nil && now.Path == last.Path && now.file == last.file && now.when.Sub(last.when) < holds {
		return last
	}
	if now.err == nil {
		now.info, now.err = now.Probe(context.Background())
		now.when = time.Now()
	}
	o.found = now
	return now
}

// extraAgent is extraProgram, for PID 1 of a box that an OCI runtime starts in its cgroup.
const extraAgent = extraControl + 1

// ociBirth implements birth.
type ociBirth struct {
	box     *box
	runtime oci.Runtime
	order   oci.Start
}

func (o *ociRuntime) prepare(b *box, control, home *os.File) (birth, error) {
	program := o.program(false)
	if program.err != nil {
		return nil, fmt.Errorf("%w: %w", engine.ErrNoEngine, program.err)
	}
	// The runtime's own stage knows neither of this nor of resource limits, which the agent sets.
	if err := forbidUserNS(b.user); err != nil {
		return nil, err
	}
	agent, err := o.programs.of(b.spec)
	if err != nil {
		return nil, err
	}
	bundle := filepath.Join(b.private, "bundle")
	err = oci.WriteBundle(bundle, oci.Config(ociBox(b)))
	if err != nil {
		return nil, err
	}
	return &ociBirth{box: b, runtime: program.Runtime, order: oci.Start{
		ID: b.id, Bundle: bundle, State: filepath.Join(b.private, "oci"),
		Files:  []*os.File{extraControl: control, extraAgent: agent},
		Cgroup: home,
		On: func(start func() error) error {
			return linux.OnThrowawayThread(func() error {
				if err := linux.Setns(b.network, unix.CLONE_NEWNET); err != nil {
					return err
				}
				if err := b.group.EnterThread(); err != nil {
					return err
				}
				return errors.Join(start(), b.group.LeaveThread())
			})
		},
	}}, nil
}

// ociBox describes box b to an OCI runtime. PID 1 needs the descriptors extraControl and extraAgent.
func ociBox(b *box) oci.Box {
	caps, _ := capsOf(b.spec)
	return oci.Box{
		Root: b.root.Path(),
		Dev:  b.root.Dev(),
		// runc 1.2 to 1.5 takes each path that begins with "/proc/<number>" for "/proc/<pid>/ns/user", and
		// reads the ID map of that process instead of the namespace's (GetUserNamespaceMappings).
		UserNS:       "/proc/." + strings.TrimPrefix(fdPath(b.user), "/proc"),
		IDBase:       b.lease.Base,
		IDs:          idRange,
		Hostname:     b.spec.Hostname,
		Args:         []string{fmt.Sprintf("/proc/self/fd/%d", 3+extraAgent), "agent"},
		Env:          agentEnv,
		UID:          agentID,
		Capabilities: caps,
		Masked:       rootfs.ProcPaths(rootfs.MaskedProc),
		ReadOnly:     rootfs.ProcPaths(rootfs.ReadOnlyProc),
	}
}

func (o *ociBirth) start() (initProcess, error) {
	// A create that is refused already does not start the runtime, which could hang as well.
	ctx, cancel := context.WithCancel(o.box.life)
	defer cancel()
	o.box.work.onRefusal(cancel)
	pid, err := o.runtime.Run(ctx, o.order)
	if errors.Is(err, oci.ErrUnusable) {
		err = fmt.Errorf("%w: %w", engine.ErrNoEngine, err)
	}
	if err != nil {
		return initProcess{}, err
	}
	p, err := o.box.takeInit(pid)
	if err != nil {
		return p, fmt.Errorf("runtime %q: %w", o.runtime.Path, err)
	}
	// Nothing needs the runtime from here on. What it has recorded would only take memory.
	_ = os.RemoveAll(o.order.Bundle)
	_ = os.RemoveAll(o.order.State)
	return p, nil
}

// forget does nothing: what the runtime records is in the box's private directory.
func (o *ociRuntime) forget(context.Context, string) error { return nil }
