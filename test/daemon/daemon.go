package daemon

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/boxd/boxd/client"
	"golang.org/x/sys/unix"
)

// Config says which daemon to run.
type Config struct {
	Boxd, Init string // the binaries
	// Dir is a new directory that belongs to root and that every user may enter. It is not
	// below /run, from which nothing is ever mounted into a box. The daemon keeps its
	// state, its socket and its log in it.
	Dir string
	// Runtime is the runtime directory. Empty: "run" in the state directory.
	Runtime string
	// Args are further arguments of "boxd serve", Env further variables of its environment.
	Args, Env []string
}

// Daemon is a daemon that is running, or was killed and can be started again.
type Daemon struct {
	Config
	cmd *exec.Cmd
}

// startTime bounds how long a daemon may take to get ready, so that a hang is an error. It
// should take much less.
const startTime = 2 * time.Minute

// Start runs a daemon and returns when it is ready.
func Start(c Config) (*Daemon, error) {
	d := &Daemon{Config: c}
	return d, d.Start()
}

// State is the state directory, Socket the socket of the API, and Log the file with the
// stderr of the daemon and its launcher.
func (d *Daemon) State() string  { return filepath.Join(d.Dir, "state") }
func (d *Daemon) Socket() string { return filepath.Join(d.Dir, "state", "boxd.sock") }
func (d *Daemon) Log() string    { return filepath.Join(d.Dir, "log") }

func (d *Daemon) runtime() string { return cmp.Or(d.Runtime, filepath.Join(d.State(), "run")) }

// Start runs the daemon again after it has ended.
func (d *Daemon) Start() error {
	ready, err := listenReady(filepath.Join(d.Dir, "notify"))
	if err != nil {
		return err
	}
	defer ready.Close()
	if err := d.spawn(); err != nil {
		return err
	}
	if err := awaitReady(ready, d.cmd.Process.Pid); err != nil {
		_ = d.Kill()
		return fmt.Errorf("starting daemon: %w; its log ends with:\n%s", err, d.LogTail(20))
	}
	return nil
}

// StartAndKill runs the daemon again after it has ended, and kills it after a time, ready or not.
func (d *Daemon) StartAndKill(after time.Duration) error {
	if err := d.spawn(); err != nil {
		return err
	}
	time.Sleep(after)
	return d.Kill()
}

// spawn runs the daemon, which then gets ready.
func (d *Daemon) spawn() error {
	log, err := os.OpenFile(d.Log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	args := append([]string{"serve", "--state-dir", d.State(), "--runtime-dir", d.runtime(), "--init", d.Init}, d.Args...)
	d.cmd = exec.Command(d.Boxd, args...)
	d.cmd.Stdout, d.cmd.Stderr = log, log
	d.cmd.Env = append(append(os.Environ(), d.Env...), "NOTIFY_SOCKET="+filepath.Join(d.Dir, "notify"))
	// ^C at the terminal ends the tests, which then stop the daemon themselves.
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return d.cmd.Start()
}

// PID returns the process ID of the daemon.
func (d *Daemon) PID() int { return d.cmd.Process.Pid }

// Kill sends SIGKILL to the daemon and waits for its end.
func (d *Daemon) Kill() error {
	if err := d.cmd.Process.Kill(); err != nil {
		return err
	}
	_, err := d.cmd.Process.Wait()
	return err
}

// Stop sends SIGTERM and waits for the end; an exit status other than 0 is an error.
func (d *Daemon) Stop() error {
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	t := time.AfterFunc(startTime, func() { _ = d.cmd.Process.Kill() })
	defer t.Stop()
	if err := d.cmd.Wait(); err != nil {
		return fmt.Errorf("stopping daemon: %w; its log ends with:\n%s", err, d.LogTail(20))
	}
	return nil
}

// Client returns a client of the daemon. It keeps working when the daemon is restarted.
func (d *Daemon) Client() (*client.Client, error) {
	return client.New(client.Options{Socket: d.Socket()})
}

// LogTail returns the last lines of the log.
func (d *Daemon) LogTail(lines int) string {
	b, err := os.ReadFile(d.Log())
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// listenReady listens like a service manager (sd_notify(3)).
func listenReady(path string) (*net.UnixConn, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return nil, err
	}
	return conn, os.Chmod(path, 0o777) // the daemon is not root when it is ready
}

// awaitReady waits for READY=1, or for the end of the process.
func awaitReady(conn *net.UnixConn, pid int) error {
	ctx, cancel := context.WithTimeout(context.Background(), startTime)
	defer cancel()
	if err := endWith(ctx, conn, pid); err != nil {
		return err
	}
	buf := make([]byte, 4096)
	for {
		n, err := conn.Read(buf)
		if err != nil {
			return errors.New("it ended, or hangs, without getting ready")
		}
		for line := range bytes.Lines(buf[:n]) {
			if string(bytes.TrimSpace(line)) == "READY=1" {
				return nil
			}
		}
	}
}

// endWith makes reads of conn fail when process pid or ctx has ended.
func endWith(ctx context.Context, conn *net.UnixConn, pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return os.NewSyscallError("pidfd_open", err)
	}
	go func() {
		defer unix.Close(fd)
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		for ctx.Err() == nil {
			if n, err := unix.Poll(fds, 50); n > 0 || (err != nil && err != unix.EINTR) {
				break
			}
		}
		_ = conn.SetReadDeadline(time.Unix(1, 0))
	}()
	return nil
}
