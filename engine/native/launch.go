package native

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native/programs"
	"github.com/boxd/boxd/engine/native/rpc"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/pathin"
	"github.com/boxd/boxd/internal/sealed"
	"github.com/boxd/boxd/internal/version"
	"golang.org/x/sys/unix"
)

// LauncherFD is the descriptor that the launcher inherits as the connection to its client.
const LauncherFD = 3

// launch starts boxd-init as a launcher from a sealed copy in memory: no box can ever
// overwrite the program that the next launcher executes (CVE-2019-5736), and libcontainer
// sees that /proc/self/exe needs no further copy.
func launch(o Options, socket *os.File) (*exec.Cmd, error) {
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("uid %d: boxes are built by root; run boxd as root or through sudo", os.Geteuid())
	}
	if err := checkPaths(o); err != nil {
		return nil, err
	}
	exe, more, err := openPrograms(o.InitPath)
	if err != nil {
		return nil, err
	}
	defer exe.Close()
	defer more.Close()
	args := []string{"launcher", "--state-dir", o.StateDir}
	if o.DataDir != "" {
		args = append(args, "--data-dir", o.DataDir)
	}
	if o.Pool > 0 {
		args = append(args, "--pool", strconv.Itoa(o.Pool))
	}
	if o.OneBox {
		args = append(args, rpc.OneBoxOption, "true")
	}
	args = append(args, besideInit(o.Runtimes, o.InitPath).Args()...)
	args = append(args, more.Args(LauncherFD+1)...)
	cmd, err := startInit(exe, append([]*os.File{socket}, more.List()...), unix.CLONE_NEWNS, args...) // keeps its mounts private
	if err != nil {
		return nil, fmt.Errorf("starting launcher %q: %w", o.InitPath, err)
	}
	return cmd, nil
}

// openPrograms returns a sealed copy of boxd-init, and the programs that belong to it. The caller closes all.
func openPrograms(initPath string) (exe *os.File, more programs.Files, err error) {
	src, err := os.Open(initPath)
	if err != nil {
		return nil, more, fmt.Errorf("opening boxd-init: %w", err)
	}
	defer src.Close()
	if more, err = programs.Beside(src); err != nil {
		return nil, more, err
	}
	if exe, err = sealed.Copy(src, programs.Init); err != nil {
		more.Close()
	}
	return exe, more, err
}

// besideInit names boxd-containerd, if no other is named and it is where boxd-init is.
func besideInit(r Runtimes, initPath string) Runtimes {
	dir, err := filepath.Abs(filepath.Dir(initPath))
	if path := filepath.Join(dir, "boxd-containerd"); r.Containerd == "" && err == nil {
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			r.Containerd = path
		}
	}
	return r
}

// leastFiles is the least hard limit of open files for boxd-init. A launcher that has fewer may be unable
// to remove what it has begun to make.
const leastFiles = 80

// startInit runs a sealed copy of boxd-init in a role, with descriptors from number 3 on. It runs in
// a session of its own, because a ^C at the terminal is meant for the user's commands.
func startInit(exe *os.File, extra []*os.File, flags uintptr, args ...string) (*exec.Cmd, error) {
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return nil, os.NewSyscallError("getrlimit", err)
	}
	if files.Max < leastFiles {
		return nil, fmt.Errorf("a process may open %d files here, must be at least %d: raise the limit (ulimit -n)", files.Max, leastFiles)
	}
	path, err := linux.ProgramPath(exe)
	if err != nil {
		return nil, err
	}
	cmd := &exec.Cmd{
		Path:        path,
		Args:        append([]string{programs.Init}, args...),
		Env:         []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"},
		Dir:         "/",
		Stderr:      os.Stderr,
		ExtraFiles:  extra,
		SysProcAttr: &syscall.SysProcAttr{Setsid: true, Cloneflags: flags},
	}
	return cmd, cmd.Start()
}

// checkPaths refuses a state directory below the directory of the binary, with which
// libcontainer would silently copy the binary for every box.
func checkPaths(o Options) error {
	if !filepath.IsAbs(o.StateDir) {
		return fmt.Errorf("state directory %q: must be absolute", o.StateDir)
	}
	init, err := filepath.Abs(o.InitPath)
	if err != nil {
		return err
	}
	if pathin.In(filepath.Clean(o.StateDir), filepath.Dir(init)) {
		return fmt.Errorf("state directory %q: must not lie below the directory of boxd-init, %q", o.StateDir, filepath.Dir(init))
	}
	return nil
}

// checkPool checks a number of boxes of [Options] or [LauncherOptions].
func checkPool(boxes int) error {
	if boxes < 0 || boxes > engine.MaxPool {
		return &engine.FieldError{Field: "pool", Value: strconv.Itoa(boxes), Rule: fmt.Sprintf("must be a number of boxes, 0 to %d", engine.MaxPool)}
	}
	return nil
}

// checkHello refuses a launcher of another build. A program that embeds this package is
// not built by our Makefile and so has no version stamp; then only the protocol counts.
func checkHello(h rpc.Hello, path string) error {
	sameBuild := h.Version == version.Version || version.Version == version.Unstamped
	switch {
	case !sameBuild || h.Protocol != rpc.Protocol:
		return fmt.Errorf("%w: %q is version %s (protocol %d), this is version %s (protocol %d): install both from one build",
			engine.ErrNoLauncher, path, h.Version, h.Protocol, version.Version, rpc.Protocol)
	case h.Error != "":
		return fmt.Errorf("%w: %s", engine.ErrNoLauncher, h.Error)
	}
	return nil
}
