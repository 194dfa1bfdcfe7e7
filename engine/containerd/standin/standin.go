// Package standin takes the place of runc while a box is born: boxd-containerd does, when a shim
// runs it as runc. The other half, which gives it the box, is package engine/containerd, whose
// documentation says why.
//
//	launcher                                   stand-in, for "runc create"
//	  | <- connects to SocketName ------------------ |
//	  | -- Birth  fds: namespaces, cgroups, files -> |
package standin

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/oneline"
	"github.com/boxd/boxd/internal/version"
	"golang.org/x/sys/unix"
)

// Names in the directory of a container.
const (
	Name        = "runc"       // symlink to the stand-in, and to the real runc once the box is born
	ProgramName = "program"    // symlink to the real runc, until it becomes Name
	SocketName  = "birth.sock" // where the launcher waits for the stand-in
)

// TypeBirth is the type of the only frame.
const TypeBirth = 1

// Birth is its body. Its descriptors: the mount namespace and the network namespace in which to
// start runc, the cgroup2 directory, Tasks tasks files of v1, and those that PID 1 inherits.
type Birth struct {
	Version string // of boxd; must equal the stand-in's
	Tasks   int
}

// Called reports whether this process was started by a shim as runc. args are those of the
// process, with its name.
func Called(args []string) bool {
	return len(args) > 1 && filepath.IsAbs(args[0]) && filepath.Base(args[0]) == Name
}

// Main does what the shim wants. It carries out "create" by starting the real runc as a child, in
// the box's cgroups and in the launcher's mount namespace, and returns its exit status. It
// replaces itself with the real runc for all other commands.
//
// The shim is the nearest subreaper, so PID 1 becomes its child when runc exits, as with runc alone.
func Main(args []string) (status int) {
	dir := filepath.Dir(args[0])
	program, err := os.Readlink(filepath.Join(dir, ProgramName))
	switch {
	case err != nil:
	case !slices.Contains(args, "create"):
		err = &os.PathError{Op: "execve", Path: program, Err: unix.Exec(program, append([]string{"runc"}, args[1:]...), os.Environ())}
	default:
		status, err = bear(dir, program, args[1:])
	}
	if err != nil {
		report(args, fmt.Errorf("starting a box of boxd: %w", err))
		return 125
	}
	return status
}

// report writes err as runc does: the shim takes the reason from the log that it names.
func report(args []string, err error) {
	fmt.Fprintln(os.Stderr, oneline.Error(err))
	at := slices.Index(args, "--log") + 1
	if at == 0 || at == len(args) {
		return
	}
	line, _ := json.Marshal(map[string]string{"level": "error", "msg": oneline.Error(err), "time": time.Now().Format(time.RFC3339)})
	if log, err := os.OpenFile(args[at], os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err == nil {
		_, _ = log.Write(append(line, '\n'))
		log.Close()
	}
}

// bear runs "create".
func bear(dir, program string, args []string) (status int, err error) {
	files, tasks, err := receive(dir)
	if err != nil {
		return 0, err
	}
	mountNS, networkNS, cgroup, rest := files[0], files[1], files[2], files[3:]
	inherited := rest[tasks:]
	at := slices.Index(args, "create") + 1
	cmd := &exec.Cmd{
		Path: program,
		// See oci.Config for why runc is told that it is rootless.
		Args:       slices.Concat([]string{"runc", "--rootless=true"}, args[:at], []string{"--preserve-fds", strconv.Itoa(len(inherited))}, args[at:]),
		Env:        os.Environ(),
		Dir:        "/",
		Stdin:      os.Stdin,
		Stdout:     os.Stdout,
		Stderr:     os.Stderr,
		ExtraFiles: inherited,
		SysProcAttr: &syscall.SysProcAttr{
			UseCgroupFD: true, CgroupFD: int(cgroup.Fd()),
			Pdeathsig: unix.SIGKILL, // runc must not outlive a stand-in that the shim has killed
		},
	}
	err = linux.OnThrowawayThread(func() error {
		if err := linux.Setns(networkNS, unix.CLONE_NEWNET); err != nil {
			return err
		}
		if err := linux.Setns(mountNS, unix.CLONE_NEWNS); err != nil {
			return err
		}
		for _, t := range rest[:tasks] {
			if _, err := t.WriteString("0"); err != nil {
				return fmt.Errorf("entering the cgroups of the box: %w", err)
			}
		}
		return cmd.Run() // not elsewhere: the child ends with the thread that started it
	})
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.Exited() {
		return exit.ExitCode(), nil // runc has written the reason to the log
	}
	return 0, err
}

// receive asks the launcher for what a box is made of.
func receive(dir string) (files []*os.File, tasks int, err error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, 0, err
	}
	defer d.Close()
	sock, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: linux.FdPath(d) + "/" + SocketName, Net: "unix"})
	if err != nil {
		return nil, 0, fmt.Errorf("connecting to the launcher: %w", err)
	}
	conn := wire.NewConn(sock)
	defer conn.Close()
	if peer, err := linux.PeerOf(sock); err != nil || peer.UID != 0 {
		return nil, 0, errors.Join(fmt.Errorf("uid %d listens where the launcher should", peer.UID), err)
	}
	frame, err := conn.Receive()
	if err != nil {
		return nil, 0, fmt.Errorf("the launcher gives nothing: %w", err)
	}
	var m Birth
	err = json.Unmarshal(frame.Body, &m)
	if err != nil || frame.Type != TypeBirth || m.Tasks < 0 || len(frame.FDs) < 3+m.Tasks {
		return nil, 0, errors.Join(fmt.Errorf("frame of type %d with %d descriptors: %w", frame.Type, len(frame.FDs), wire.ErrProtocol), err)
	}
	if m.Version != version.Version {
		return nil, 0, fmt.Errorf("the launcher is version %s, boxd-containerd %s: install both from one build", m.Version, version.Version)
	}
	return frame.Files(), m.Tasks, nil
}
