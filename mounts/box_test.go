package mounts

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// boxRole in the environment makes the test binary play the box.
const boxRole = "BOXD_MOUNTS_TEST_BOX"

const (
	boxBase = 0x70000000 + 4000*65536 // host id of the box's root
	owner   = 4242                    // host id that owns the mounted directories
)

// testBox is a process in its own user and mount namespaces. Its root is a tmpfs that was
// created outside, as by the launcher.
type testBox struct {
	NS
	t     testing.TB
	root  *os.File // the tmpfs, writable
	cmd   *exec.Cmd
	stdin io.Closer
	in    io.Writer
	out   *bufio.Scanner
}

// startBox starts a box with the given directories in its root.
func startBox(t testing.TB, dirs ...string) *testBox {
	t.Helper()
	b, point := &testBox{t: t}, ownedDir(t)
	b.start()
	t.Cleanup(b.stop)
	var err error
	if b.root, err = linux.NewMount("tmpfs", 0, linux.Option{Key: "mode", Value: "0755"}); err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		if err := MakeMountPoint(b.root, dir, true); err != nil {
			t.Fatal(err)
		}
	}
	host, err := OpenNS(b.cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	if _, err := Attach(host, b.root, point, nil); err != nil {
		t.Fatal(err)
	}
	b.must("chroot", point)
	if b.NS, err = OpenNS(b.cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	return b
}

// start starts the process in its namespaces.
func (b *testBox) start() {
	b.cmd = exec.Command("/proc/self/exe")
	// The race detector would sleep for a second at exit.
	b.cmd.Env = []string{boxRole + "=1", "GORACE=atexit_sleep_ms=0"}
	b.cmd.Stderr = os.Stderr
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: boxBase, Size: 65536}}
	b.cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:                 syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings:                ids,
		GidMappings:                ids,
		GidMappingsEnableSetgroups: true,
		Credential:                 &syscall.Credential{},
	}
	in, err := b.cmd.StdinPipe()
	if err != nil {
		b.t.Fatal(err)
	}
	out, err := b.cmd.StdoutPipe()
	if err != nil {
		b.t.Fatal(err)
	}
	b.in, b.stdin, b.out = in, in, bufio.NewScanner(out)
	if err := b.cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
}

func (b *testBox) stop() {
	b.stdin.Close()
	if err := b.cmd.Wait(); err != nil {
		b.t.Errorf("box: %v", err)
	}
	for _, f := range []*os.File{b.root, b.mnt, b.NS.root} {
		if f != nil {
			f.Close()
		}
	}
}

// do makes the box perform one of boxActions and returns its answer.
func (b *testBox) do(action string, args ...string) (string, error) {
	b.t.Helper()
	fmt.Fprintln(b.in, strings.Join(append([]string{action}, args...), "\t"))
	if !b.out.Scan() {
		b.t.Fatalf("box is gone: %v", b.out.Err())
	}
	ok, text, _ := strings.Cut(b.out.Text(), "\t")
	if ok != "ok" {
		return "", errors.New(text)
	}
	return text, nil
}

func (b *testBox) must(action string, args ...string) string {
	b.t.Helper()
	text, err := b.do(action, args...)
	if err != nil {
		b.t.Fatalf("%s %q in the box: %v", action, args, err)
	}
	return text
}

// fails expects an error that contains want.
func (b *testBox) fails(want, action string, args ...string) {
	b.t.Helper()
	text, err := b.do(action, args...)
	if err == nil || !strings.Contains(err.Error(), want) {
		b.t.Errorf("%s %q in the box: %q, %v, want %q", action, args, text, err, want)
	}
}

// playBox answers lines of tab-separated words until its input ends.
func playBox() {
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		words := strings.Split(in.Text(), "\t")
		text, err := boxActions[words[0]](words[1:])
		if err != nil {
			fmt.Printf("error\t%v\n", err)
			continue
		}
		fmt.Printf("ok\t%s\n", text)
	}
}

var boxActions = map[string]func(args []string) (string, error){
	"chroot": func(a []string) (string, error) {
		return "", errors.Join(syscall.Chroot(a[0]), os.Chdir("/"))
	},
	"write": func(a []string) (string, error) { return "", os.WriteFile(a[0], []byte(a[1]), 0o644) },
	"read": func(a []string) (string, error) {
		text, err := os.ReadFile(a[0])
		return string(text), err
	},
	"rename": func(a []string) (string, error) { return "", os.Rename(a[0], a[1]) },
	"remove": func(a []string) (string, error) { return "", os.Remove(a[0]) },
	// churn begins to do anything to the directory a[0] that could mislead its users,
	// until calm.
	"churn": func(a []string) (string, error) {
		stop, stopped := make(chan struct{}), make(chan struct{})
		churning = func() { close(stop); <-stopped }
		go churn(a[0], stop, stopped)
		return "", nil
	},
	"calm": func([]string) (string, error) {
		churning()
		return "", nil
	},
	"mkdir":   func(a []string) (string, error) { return "", os.Mkdir(a[0], 0o755) },
	"symlink": func(a []string) (string, error) { return "", os.Symlink(a[0], a[1]) },
	"ls": func(a []string) (string, error) {
		names, err := filepath.Glob(a[0] + "/*")
		return strings.Join(names, " "), err
	},
	"owner": func(a []string) (string, error) {
		var st unix.Stat_t
		err := unix.Lstat(a[0], &st)
		return fmt.Sprint(st.Uid, ":", st.Gid), err
	},
	// run runs a program as another user of the box.
	"run": func(a []string) (string, error) {
		cmd := exec.Command(a[0], a[1:]...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 5, Gid: 5}}
		text, err := cmd.Output()
		return strings.TrimSpace(string(text)), err
	},
}

var churning func()

// churn renames dir back and forth, and puts a symlink, a file, nothing or a directory
// of that name in its place.
func churn(dir string, stop, stopped chan struct{}) {
	defer close(stopped)
	away, bare := dir+".away", dir+".bare"
	for i := 0; ; i++ {
		select {
		case <-stop:
			return
		default:
		}
		// Any of these may fail, because of what happens to the directory meanwhile.
		_ = os.Rename(dir, away)
		switch i % 4 {
		case 0:
			_ = os.Symlink("/secret", dir)
		case 1:
			_ = os.Symlink("../secret", dir)
		case 2:
			_ = os.WriteFile(dir, nil, 0o600)
		case 3:
			_ = os.Mkdir(dir, 0o700)
			_ = os.Rename(dir, bare)
			_ = os.RemoveAll(bare)
		}
		_ = os.Remove(dir)
		_ = os.Rename(away, dir)
	}
}

// ownedDir creates a directory that belongs to owner, who can reach it.
func ownedDir(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	for _, err := range []error{os.Chmod(filepath.Dir(dir), 0o755), os.Chown(dir, owner, owner)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// ownedFile is a file named "file" with the content "text" in an ownedDir.
func ownedFile(t testing.TB) string {
	t.Helper()
	file := filepath.Join(ownedDir(t), "file")
	if err := errors.Join(os.WriteFile(file, []byte("text"), 0o644), os.Chown(file, owner, owner)); err != nil {
		t.Fatal(err)
	}
	return file
}

// asOwner runs a program of the host as the owner of the mounted directories.
func asOwner(t testing.TB, name string, args ...string) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: owner, Gid: owner}}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%s %q as owner: %v: %s", name, args, err, out)
	}
}

// inPrivateNamespace runs fn on a thread in its own mount namespace, so that fn's mounts
// vanish with it. fn returns an error because it must not call t.Fatal there.
func inPrivateNamespace(t testing.TB, fn func() error) {
	t.Helper()
	err := linux.OnThrowawayThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return err
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return err
		}
		return fn()
	})
	if err != nil {
		t.Error(err)
	}
}
