// Package containerd runs a containerd of its own for tests: with its own directories, socket and
// configuration, in a mount namespace in which /run/containerd, where shims have their sockets,
// is a tmpfs. The host's containerd, if there is one, is not touched. At the end it checks that
// nothing is left: no container, task, snapshot, lease, bundle, shim or mount.
package containerd

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/boxd/boxd/engine/containerd/proto"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/testutil"
	"golang.org/x/sys/unix"
)

// Daemon is a containerd.
type Daemon struct {
	Address string // of its socket
	Program string // what Start runs

	t   testing.TB
	dir string
	ns  *os.File // mount namespace
	cmd *exec.Cmd
	log *bytes.Buffer // problems of the last process; read it only once that has ended
	eof chan struct{} // closed when log is complete
}

// Start starts Debian's containerd, or the program given. The test ends it.
func Start(t testing.TB, program ...string) *Daemon {
	t.Helper()
	testutil.RequireRoot(t)
	testutil.RequireProgram(t, "runc")
	d := &Daemon{t: t, dir: testutil.ReachableDir(t, "")}
	if len(program) > 0 {
		d.Program = program[0]
	} else {
		d.Program = testutil.RequireProgram(t, "containerd")
	}
	d.Address = filepath.Join(d.dir, "containerd.sock")
	config := fmt.Sprintf(`version = 2
root = %q
state = %q
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime", "io.containerd.cri.v1.images", "io.containerd.nri.v1.nri", "io.containerd.internal.v1.opt",
	"io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.blockfile", "io.containerd.snapshotter.v1.erofs"]
[grpc]
  address = %q
[ttrpc]
  address = %q
`, filepath.Join(d.dir, "root"), filepath.Join(d.dir, "state"), d.Address, filepath.Join(d.dir, "ttrpc.sock"))
	if err := os.WriteFile(filepath.Join(d.dir, "config.toml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	shimDir.take()
	t.Cleanup(shimDir.release)
	err := linux.OnThrowawayThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return err
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
			return err
		}
		if err := unix.Mount("tmpfs", "/run/containerd", "tmpfs", 0, "mode=0711"); err != nil {
			return err
		}
		var err error
		d.ns, err = os.Open("/proc/thread-self/ns/mnt")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	d.Restart()
	t.Cleanup(d.end)
	return d
}

// shimDir is /run/containerd, a mount point for each Daemon, and empty. The last one removes it if the first
// one made it: removing it would unmount it everywhere.
var shimDir mountPoint

type mountPoint struct {
	mu    sync.Mutex
	users int
	made  bool
}

func (m *mountPoint) take() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.users++; m.users == 1 {
		m.made = os.Mkdir("/run/containerd", 0o711) == nil
	}
}

func (m *mountPoint) release() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.users--; m.users == 0 && m.made {
		_ = os.Remove("/run/containerd")
	}
}

// Restart starts containerd again after Kill, and waits until it serves.
func (d *Daemon) Restart() {
	d.t.Helper()
	out, err := d.start()
	if err != nil {
		d.t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	d.log, d.eof = new(bytes.Buffer), make(chan struct{})
	booted := make(chan bool, 1)
	go func() {
		defer close(d.eof)
		for lines.Scan() {
			if !strings.Contains(lines.Text(), "loading plugin") {
				d.log.WriteString(lines.Text() + "\n")
			}
			if strings.Contains(lines.Text(), "containerd successfully booted") {
				booted <- true
			}
		}
		select {
		case booted <- false:
		default:
		}
	}()
	select {
	case ok := <-booted:
		if !ok {
			d.t.Fatalf("containerd has ended:\n%s", d.log)
		}
	case <-time.After(testutil.Patience()):
		d.t.Fatal("containerd does not start")
	}
}

func (d *Daemon) start() (io.Reader, error) {
	d.cmd = exec.Command(d.Program, "--config", filepath.Join(d.dir, "config.toml"))
	d.cmd.Dir = d.dir
	// A shim is found in the directory of the program, or in PATH.
	d.cmd.Env = []string{"PATH=" + filepath.Dir(d.Program) + ":/usr/sbin:/usr/bin:/sbin:/bin"}
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer write.Close()
	d.cmd.Stderr = write // shims have it as well, so Wait would wait for them
	d.t.Cleanup(func() { read.Close() })
	return read, linux.OnThrowawayThread(func() error {
		if err := linux.Setns(d.ns, unix.CLONE_NEWNS); err != nil {
			return err
		}
		return d.cmd.Start()
	})
}

// Kill ends containerd with SIGKILL. Its shims stay.
func (d *Daemon) Kill() {
	_ = d.cmd.Process.Kill()
	_ = d.cmd.Wait()
}

// Signal sends a signal to containerd.
func (d *Daemon) Signal(sig os.Signal) {
	if err := d.cmd.Process.Signal(sig); err != nil {
		d.t.Error(err)
	}
}

// Shims returns the processes of the shims that work for containerd.
func (d *Daemon) Shims() (pids []int) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		line, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		args := strings.Split(string(line), "\x00")
		if strings.HasPrefix(filepath.Base(args[0]), "containerd-shim") && slices.Contains(args, d.Address) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// List returns what containerd has in the namespace of boxd, as lines with the kind and a name.
func (d *Daemon) List() (found []string) {
	d.t.Helper()
	for _, kind := range []string{"containers", "tasks", "snapshots", "leases"} {
		ctx, cancel := context.WithTimeout(context.Background(), testutil.Patience())
		out, err := exec.CommandContext(ctx, testutil.RequireProgram(d.t, "ctr"), "--address", d.Address, "--namespace", proto.Namespace, kind, "list").CombinedOutput()
		cancel()
		if err != nil {
			d.t.Fatalf("ctr %s list: %v\n%s", kind, err, out)
		}
		for i, line := range strings.Split(strings.TrimSpace(string(out)), "\n") {
			if i > 0 { // after the title
				found = append(found, kind+" "+strings.Fields(line)[0])
			}
		}
	}
	return found
}

// AwaitEmpty waits until nothing of boxd is left in containerd and no shim runs.
func (d *Daemon) AwaitEmpty() {
	d.t.Helper()
	d.awaitNone(func() []string { return append(d.records(), d.bundles()...) })
}

// AwaitNoRecords is AwaitEmpty, except for directories of bundles.
func (d *Daemon) AwaitNoRecords() {
	d.t.Helper()
	d.awaitNone(d.records)
}

func (d *Daemon) awaitNone(list func() []string) {
	d.t.Helper()
	end := time.Now().Add(min(testutil.Patience(), time.Minute))
	for {
		left := list()
		if len(left) == 0 {
			return
		}
		if time.Now().After(end) {
			d.t.Errorf("left in containerd: %q", left)
			return
		}
		time.Sleep(20 * time.Millisecond) // containerd reports the end of tasks only, and not that of shims
	}
}

func (d *Daemon) records() []string {
	found := d.List()
	for _, pid := range d.Shims() {
		found = append(found, fmt.Sprintf("shim %d", pid))
	}
	return found
}

func (d *Daemon) bundles() (found []string) {
	for _, pattern := range []string{"state/io.containerd.runtime.v2.task/*/*", "root/io.containerd.runtime.v2.task/*/*"} {
		bundles, _ := filepath.Glob(filepath.Join(d.dir, pattern))
		found = append(found, bundles...)
	}
	return found
}

// end checks that nothing is left, and ends containerd.
func (d *Daemon) end() {
	defer d.ns.Close()
	if d.cmd.ProcessState != nil {
		d.Restart()
	}
	_ = d.cmd.Process.Signal(unix.SIGCONT)
	d.AwaitEmpty()
	for _, pid := range d.Shims() { // AwaitEmpty has failed
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	_ = d.cmd.Process.Signal(unix.SIGTERM)
	if err := d.cmd.Wait(); err != nil {
		if _, exited := errors.AsType[*exec.ExitError](err); !exited {
			d.t.Error(err)
		}
	}
	if d.t.Failed() {
		select {
		case <-d.eof:
			d.t.Logf("containerd:\n%s", d.log)
		case <-time.After(time.Second): // a shim has the pipe
		}
	}
}
