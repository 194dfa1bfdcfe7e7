package launcher

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/containerd"
	"github.com/boxd/boxd/engine/native/rpc"
	"github.com/boxd/boxd/engine/oci"
	"github.com/boxd/boxd/internal/linux"
)

// containerdRuntime is containerd, whose shim runs the same OCI runtime as ociRuntime.
type containerdRuntime struct {
	oci    *ociRuntime
	engine *containerd.Engine
	name   string // of the runtime, in containerd's words

	looking sync.Mutex // held to look, so that several creates do so once
	version string
	err     error
	when    time.Time
}

// openContainerd returns nil if the launcher was not told of boxd-containerd.
func (l *Launcher) openContainerd(o rpc.Runtimes, runc *ociRuntime) *containerdRuntime {
	if o.Containerd == "" {
		return nil
	}
	c := &containerdRuntime{oci: runc, name: cmp.Or(o.ContainerdRuntime, containerd.DefaultRuntime)}
	c.engine = containerd.New(containerd.Options{
		Program:  o.Containerd,
		Address:  cmp.Or(o.ContainerdAddress, containerd.DefaultAddress),
		Runtime:  c.name,
		StateDir: l.instance.state,
		Runc: func() (string, error) {
			p := runc.program(false)
			return p.Path, p.err
		},
	})
	return c
}

func (c *containerdRuntime) look(fresh bool) (string, error) {
	runc, err := c.oci.look(fresh)
	if err != nil {
		return "", err
	}
	c.looking.Lock()
	defer c.looking.Unlock()
	// A create that finds containerd hanging takes as long as containerd may take for one. The
	// question takes a millisecond, and its time is short. So it is asked each time, unless it
	// has just failed.
	holds := freshTime
	switch {
	case fresh:
	case c.err != nil:
		holds = unsoundTime
	default:
		holds = 0
	}
	if time.Since(c.when) >= holds {
		c.version, c.err = c.engine.State(context.Background())
		c.when = time.Now()
	}
	return fmt.Sprintf("containerd %s, %s, %s", cmp.Or(c.version, "unknown"), c.name, runc), c.err
}

// noteFailure makes the next create look again.
func (c *containerdRuntime) noteFailure(err error) {
	if errors.Is(err, engine.ErrNoEngine) {
		c.looking.Lock()
		c.when = time.Time{}
		c.looking.Unlock()
	}
}

// containerdBirth implements birth.
type containerdBirth struct {
	box     *box
	runtime *containerdRuntime
	order   containerd.Birth
	close   []*os.File // those of order that belong to it
}

func (c *containerdRuntime) prepare(b *box, control, home *os.File) (_ birth, err error) {
	program := c.oci.program(false)
	if program.err != nil {
		return nil, fmt.Errorf("%w: %w", engine.ErrNoEngine, program.err)
	}
	if err := forbidUserNS(b.user); err != nil {
		return nil, err
	}
	agent, err := c.oci.programs.of(b.spec)
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(oci.Config(ociBox(b)))
	if err != nil {
		return nil, err
	}
	tasks, err := b.group.InitTasks()
	if err != nil {
		return nil, err
	}
	// That of the main thread, in which the roots of all boxes are.
	mountNS, err := os.Open("/proc/self/ns/mnt")
	if err != nil {
		linux.CloseAll(tasks)
		return nil, err
	}
	return &containerdBirth{box: b, runtime: c, close: append(tasks, mountNS), order: containerd.Birth{
		Container: containerd.ContainerID(b.group.ID),
		Box:       b.dir,
		Runc:      program.Path,
		Spec:      text,
		MountNS:   mountNS,
		NetworkNS: b.network,
		Cgroup:    home,
		Tasks:     tasks,
		Files:     []*os.File{extraControl: control, extraAgent: agent},
	}}, nil
}

func (c *containerdBirth) start() (p initProcess, err error) {
	defer linux.CloseAll(c.close)
	pid, err := c.runtime.engine.Create(c.box.life, c.order)
	if err == nil {
		if p, err = c.box.takeInit(pid); err == nil {
			if err = c.runtime.engine.Run(c.box.life, c.order.Container); err != nil {
				p.pidfd.Close() // it is in the box's cgroups
			}
		}
	}
	if err != nil {
		c.runtime.noteFailure(err)
		return initProcess{}, fmt.Errorf("%s: %w", c.runtime.name, err)
	}
	return p, nil
}

func (c *containerdRuntime) forget(ctx context.Context, name string) error {
	c.engine.Forget(ctx, containerd.ContainerID(name))
	return nil
}

// sweepContainers has containerd forget the boxes that other launchers have left.
func (l *Launcher) sweepContainers() {
	if _, err := os.Stat(filepath.Join(l.instance.state, containerd.Dir)); err != nil || l.containerd == nil {
		return
	}
	l.containerd.engine.Settle()
}
