package launcher

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/boxd/boxd/internal/linux"
	"github.com/opencontainers/runc/libcontainer"
	"golang.org/x/sys/unix"
)

// native is libcontainer, in this process.
type native struct{ programs *boxPrograms }

// nativeBirth implements birth.
type nativeBirth struct {
	box       *box
	container *libcontainer.Container
	process   *libcontainer.Process
}

func (n native) prepare(b *box, control, home *os.File) (birth, error) {
	program, err := n.programs.of(b.spec)
	if err != nil {
		return nil, err
	}
	c := config(b.spec, b.id, b.root.Path(), b.root.Dev(), fdPath(b.user), fdPath(b.network), b.lease.Base)
	container, err := libcontainer.Create(filepath.Join(b.private, "libcontainer"), b.id, c)
	if err != nil {
		return nil, fmt.Errorf("creating container: %w", err)
	}
	return &nativeBirth{box: b, container: container, process: &libcontainer.Process{
		Init:       true,
		Args:       []string{fmt.Sprintf("/proc/self/fd/%d", 3+extraProgram), "agent"},
		Env:        agentEnv,
		LogLevel:   strconv.Itoa(int(logLevel)),
		Cwd:        "/",
		UID:        initID(b.spec),
		GID:        initID(b.spec),
		ExtraFiles: []*os.File{extraControl: control, extraCgroup: home, extraProgram: program},
	}}, nil
}

// start starts PID 1. The calling thread enters the box's v1 cgroups first, so that its
// child starts there. It calls Start instead of Run because PID 1 does not wait at the exec
// fifo, see birth.c.
func (n *nativeBirth) start() (initProcess, error) {
	err := linux.OnThrowawayThread(func() error {
		if err := n.box.group.EnterThread(); err != nil {
			return err
		}
		return errors.Join(n.container.Start(n.process), n.box.group.LeaveThread())
	})
	if err != nil {
		return initProcess{}, err
	}
	p := initProcess{reap: func() { _, _ = n.process.Wait() }}
	if p.pid, err = n.process.Pid(); err == nil {
		p.pidfd, err = linux.PidfdOpen(p.pid)
	}
	if err != nil {
		_ = n.process.Signal(unix.SIGKILL)
		go p.reap()
	}
	return p, err
}

func (native) look(bool) (string, error) { return "libcontainer", nil }

// forget does nothing: libcontainer's state is in the box's private directory.
func (native) forget(context.Context, string) error { return nil }
