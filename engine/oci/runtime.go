package oci

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/boxd/boxd/internal/oneline"
	"golang.org/x/sys/unix"
)

const (
	// probeTime bounds each command that asks the runtime something.
	probeTime = 5 * time.Second
	// runTime bounds the start of a box. runc takes some 50 ms; on a busy host it may take seconds.
	runTime = 20 * time.Second
	// killDelay bounds how long children that the runtime left may hold its output.
	killDelay = time.Second
	// maxOutput is how many bytes of a runtime's answers and log are read.
	maxOutput = 1 << 20
	// How many bytes of a message of a runtime are in an error: of one of its log, and of an answer to a
	// question, in which an old one explains all of its commands.
	maxReason = 1000
	maxAnswer = 150
)

// Runtime is a program with the command line of an OCI runtime. It is a value that commands are
// run with; it owns nothing.
type Runtime struct {
	Path string // of the program, see Check
}

// Info is what a runtime says of itself.
type Info struct {
	Name    string // such as "runc"
	Version string // such as "1.1.5+ds1"
}

// String returns "runc 1.1.5+ds1"; "" if nothing is known.
func (i Info) String() string { return strings.TrimSpace(i.Name + " " + i.Version) }

// minRunc is the oldest runc that boxd drives: the first with the command "features".
var minRunc = [2]int{1, 1}

// Probe asks the runtime for its version, and whether it makes the namespaces that a box has. It
// takes at most some 5 s.
func (r Runtime) Probe(ctx context.Context) (Info, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	out, err := r.ask(ctx, "--version")
	if err != nil {
		return Info{}, err
	}
	info, err := parseVersion(out)
	if err != nil {
		return info, unusable("runtime %q: %w", r.Path, err)
	}
	if out, err = r.ask(ctx, "features"); err != nil {
		return info, fmt.Errorf("%w: is %v too old?", err, info)
	}
	if err := checkFeatures(out); err != nil {
		return info, unusable("runtime %q, %v: %w", r.Path, info, err)
	}
	return info, nil
}

// parseVersion reads the answer to --version: "runc version 1.1.5", and more lines.
func parseVersion(out []byte) (Info, error) {
	first, _, _ := strings.Cut(string(out), "\n")
	name, version, ok := strings.Cut(strings.TrimSpace(first), " version ")
	if !ok || name == "" || version == "" || len(first) > 100 || !printable(first) {
		return Info{}, fmt.Errorf("its version is %.100q, not of the form \"runc version 1.2.3\": it is no OCI runtime", first)
	}
	info := Info{Name: name, Version: version}
	if name != "runc" {
		return info, nil
	}
	var v [2]int
	if _, err := fmt.Sscanf(version, "%d.%d", &v[0], &v[1]); err != nil {
		return info, fmt.Errorf("its version is %q: %w", version, err)
	}
	if v[0] < minRunc[0] || v[0] == minRunc[0] && v[1] < minRunc[1] {
		return info, fmt.Errorf("runc %s is too old: must be %d.%d or newer", version, minRunc[0], minRunc[1])
	}
	return info, nil
}

func printable(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return !strconv.IsPrint(r) }) < 0
}

// checkFeatures reads the answer to "features" (runtime-spec, features.md).
func checkFeatures(out []byte) error {
	var f struct {
		Linux struct {
			Namespaces []string `json:"namespaces"`
		} `json:"linux"`
	}
	if err := json.Unmarshal(out, &f); err != nil {
		return fmt.Errorf("reading its features: %w", err)
	}
	have := map[string]bool{}
	for _, n := range f.Linux.Namespaces {
		have[n] = true
	}
	for _, n := range Config(Box{}).Linux.Namespaces {
		if !have[string(n.Type)] {
			return fmt.Errorf("it does not make namespaces of type %q", n.Type)
		}
	}
	return nil
}

// ask runs a command of the runtime that answers on its standard output.
func (r Runtime) ask(ctx context.Context, args ...string) ([]byte, error) {
	out, errs := limited{max: maxOutput}, limited{max: 4 << 10}
	cmd := r.command(ctx, args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	// It dies with this process: with the thread, in fact, which must not end before (prctl(2)).
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr.Pdeathsig = unix.SIGKILL
	err := cmd.Run()
	switch {
	case ctx.Err() != nil:
		reapGroup(cmd)
		return nil, unusable("runtime %q does not answer to %q within %v: it was killed", r.Path, args[0], probeTime)
	case err != nil && errs.Len() > 0:
		return nil, unusable("runtime %q: %s: %w: %s", r.Path, args[0], err, brief(errs.String(), maxAnswer))
	case err != nil:
		return nil, unusable("runtime %q: %s: %w", r.Path, args[0], err)
	}
	return out.Bytes(), nil
}

// brief returns what a runtime says of a failure as one line of at most some most bytes.
func brief(text string, most int) string {
	text = oneline.Text(text)
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}

// command returns a command with a group of its own, which is killed when ctx ends.
func (r Runtime) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, r.Path, args...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = killDelay
	return cmd
}

// reapGroup reaps what a killed command has left in its group, if this process is a subreaper and so the
// parent of orphans. It waits until they are dead, but at most for killDelay.
func reapGroup(cmd *exec.Cmd) {
	if cmd.Process == nil {
		return
	}
	for end := time.Now().Add(killDelay); time.Now().Before(end); {
		pid, err := unix.Wait4(-cmd.Process.Pid, nil, unix.WNOHANG, nil)
		if err != nil && err != unix.EINTR {
			return // ECHILD: there are none left
		}
		if pid == 0 {
			time.Sleep(time.Millisecond)
		}
	}
}

// limited keeps the first max bytes that are written to it.
type limited struct {
	bytes.Buffer
	max int
}

func (l *limited) Write(p []byte) (int, error) {
	l.Buffer.Write(p[:min(len(p), l.max-l.Len())])
	return len(p), nil
}

// Start describes the start of a box with Run.
type Start struct {
	ID     string // of the box, in the runtime's words of the container
	Bundle string // see WriteBundle
	State  string // directory for the runtime's state, for this box alone; Run makes it
	// Files become the descriptors from 3 on of PID 1. The runtime and PID 1 get no others,
	// except for standard streams, which are /dev/null.
	Files []*os.File
	// Cgroup is the cgroup2 directory in which the runtime starts, and so PID 1.
	Cgroup *os.File
	// On calls start on the thread whose network namespace and v1 cgroups the runtime and PID 1
	// shall have.
	On func(start func() error) error
}

// Run starts PID 1 of a box and returns its PID on the host when PID 1 has been executed. It
// runs "create" and "start" as one command, "run --detach": if the caller dies meanwhile, PID 1
// does not wait for a second command that will never come.
//
// After a failure, and when caller has ended, processes of the runtime may be left in the cgroups of s.
func (r Runtime) Run(caller context.Context, s Start) (pid int, err error) {
	ctx, cancel := context.WithTimeout(caller, runTime)
	defer cancel()
	if err := os.Mkdir(s.State, 0o700); err != nil {
		return 0, err
	}
	log, pidFile := filepath.Join(s.State, "log.json"), filepath.Join(s.State, "pid")
	cmd := r.command(ctx,
		"--root", filepath.Join(s.State, "root"), "--rootless", "true", "--log", log, "--log-format", "json",
		"run", "--detach", "--bundle", s.Bundle, "--pid-file", pidFile, "--preserve-fds", strconv.Itoa(len(s.Files)), s.ID)
	cmd.ExtraFiles = s.Files
	cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(s.Cgroup.Fd())
	if err := s.On(cmd.Start); err != nil {
		if _, ok := errors.AsType[*os.PathError](err); ok && cmd.Process == nil {
			err = unusable("runtime %q: %w", r.Path, err)
		}
		if cmd.Process != nil {
			_ = cmd.Cancel()
			_ = cmd.Wait()
		}
		return 0, err
	}
	err = cmd.Wait()
	switch reason := lastError(log); {
	case caller.Err() != nil:
		return 0, fmt.Errorf("runtime %q: %w", r.Path, context.Cause(caller))
	case ctx.Err() != nil:
		return 0, unusable("runtime %q does not start a box within %v: it was killed", r.Path, runTime)
	case err != nil && reason != "":
		return 0, fmt.Errorf("runtime %q: %s (%w)", r.Path, reason, err)
	case err != nil:
		return 0, fmt.Errorf("runtime %q: %w, and no reason in its log", r.Path, err)
	}
	text, err := readLimited(pidFile, 32)
	if err != nil {
		return 0, fmt.Errorf("runtime %q: %w", r.Path, err)
	}
	if pid, err = strconv.Atoi(string(text)); err != nil || pid <= 1 {
		return 0, fmt.Errorf("runtime %q: its PID file has %q: must be the number of a process", r.Path, text)
	}
	return pid, nil
}

// lastError returns the last error in a log of JSON lines, as one line; empty if there is none.
func lastError(path string) (reason string) {
	text, _ := readLimited(path, maxOutput)
	for line := range bytes.Lines(text) {
		var entry struct{ Level, Msg string }
		if json.Unmarshal(line, &entry) == nil && (entry.Level == "error" || entry.Level == "fatal") {
			reason = brief(entry.Msg, maxReason)
		}
	}
	return reason
}

// readLimited reads at most the first most bytes of a regular file.
func readLimited(path string, most int64) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, most))
}
