package volumes

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/testutil"
)

const testUID, testGID = 61234, 61235

// kinds are the ways of limiting that this host supports.
func kinds(t *testing.T, test func(t *testing.T, by string)) {
	for _, by := range []string{ByImage, ByProjectQuota} {
		t.Run(by, func(t *testing.T) {
			if by == ByProjectQuota {
				requireQuota(t)
			} else {
				requireLoop(t)
			}
			test(t, by)
		})
	}
}

// requireQuota ends the test where the file system of the tests' directories has no project
// quota. The virtual machine has it.
func requireQuota(t testing.TB) {
	t.Helper()
	testutil.RequireRoot(t)
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if err := quotaOn(dir); err != nil {
		if os.Getenv("BOXD_TEST_VM") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
}

// requireLoop ends the test where there are no loop devices: in a container, or with a
// kernel without.
func requireLoop(t testing.TB) {
	t.Helper()
	testutil.RequireRoot(t)
	testutil.RequireProgram(t, "mke2fs")
	control, err := openControl()
	if err != nil {
		// A system with udev has the device, which loads the module.
		if out, e := exec.Command("/sbin/modprobe", "loop").CombinedOutput(); e != nil {
			t.Logf("modprobe loop: %v: %s", e, out)
		}
		if control, err = openControl(); err != nil {
			testutil.RequireFeature(t, "loop devices", err)
		}
	}
	control.Close()
}

// place is a data directory and everything else that a Store needs.
type place struct{ data, mounts string }

func newPlace(t testing.TB) place {
	dir := t.TempDir()
	// Others must reach the roots of volumes in it.
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	p := place{data: filepath.Join(dir, "data"), mounts: filepath.Join(dir, "mounts")}
	t.Cleanup(func() {
		for _, line := range loopsOf(t, dir) {
			t.Errorf("loop device left: %s", line)
		}
	})
	return p
}

// loopsOf returns the loop devices of files below dir.
func loopsOf(t testing.TB, dir string) (loops []string) {
	err := eachLoop(func(dev, file string) (bool, error) {
		if strings.HasPrefix(file, dir+"/") {
			loops = append(loops, dev+" "+file)
		}
		return true, nil
	})
	if err != nil {
		t.Error(err)
	}
	return loops
}

func (p place) open(t testing.TB, by string) *Store {
	t.Helper()
	s, err := Open(p.data, p.mounts, testUID, testGID)
	if err != nil {
		t.Fatal(err)
	}
	if by == ByImage {
		s.noQuota = ErrNoQuota
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// openStore opens a separate Store whose volumes are of one kind.
func openStore(t testing.TB, by string) *Store { return newPlace(t).open(t, by) }

func mustMake(t testing.TB, s *Store, name string, bytes, inodes int64) {
	t.Helper()
	if err := s.Make(name, bytes, inodes); err != nil {
		t.Fatal(err)
	}
}

func mustRoot(t testing.TB, s *Store, name string) *os.File {
	t.Helper()
	f, err := s.Root(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func mustState(t testing.TB, s *Store, name string) State {
	t.Helper()
	states, err := s.List()
	if err != nil {
		t.Fatal(err)
	}
	for _, st := range states {
		if st.Name == name {
			return st
		}
	}
	t.Fatalf("volume %q is not in the list %v", name, states)
	return State{}
}

// asUser runs fn as the user of volumes, without any privilege, in directory dir.
func asUser(t testing.TB, dir *os.File, fn func() error) {
	t.Helper()
	if err := tryAsUser(dir, fn); err != nil {
		t.Fatal(err)
	}
}

func tryAsUser(dir *os.File, fn func() error) error {
	return linux.OnThrowawayThread(func() error {
		if err := unix.Fchdir(int(dir.Fd())); err != nil {
			return err
		}
		// The thread may live on for a moment, and must not keep the volume busy.
		defer unix.Chdir("/")
		for _, call := range [][2]uintptr{{unix.SYS_SETGROUPS, 0}, {unix.SYS_SETRESGID, testGID}, {unix.SYS_SETRESUID, testUID}} {
			id := call[1]
			if _, _, errno := unix.RawSyscall(call[0], id, id, id); errno != 0 {
				return errno
			}
		}
		return fn()
	})
}

// fill writes to a new file until that fails, and returns how many bytes it has written.
func fill(name string) (written int64, err error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for chunk := make([]byte, 256<<10); ; {
		n, err := f.Write(chunk)
		written += int64(n)
		if err == nil && written%(4<<20) == 0 {
			err = f.Sync()
		}
		if isFull(err) && len(chunk) > 4096 { // a large chunk may be refused as a whole
			chunk = chunk[:len(chunk)/2]
			continue
		}
		if err != nil {
			return written, errors.Join(err, f.Sync())
		}
		if written > 1<<30 {
			return written, errors.New("there is no limit")
		}
	}
}

// crowd creates empty files until that fails, and returns their number.
func crowd(prefix string) (made int64, err error) {
	for ; made < 1<<20; made++ {
		fd, err := unix.Open(fmt.Sprint(prefix, made), unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return made, err
		}
		unix.Close(fd)
	}
	return made, errors.New("there is no limit")
}

// soon waits for work that the kernel does later: XFS counts deleted files for a while.
func soon(done func() bool) bool {
	for until := time.Now().Add(10 * time.Second); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(until) {
			return false
		}
	}
	return true
}

// onXFS reports whether path is on XFS.
func onXFS(t *testing.T, path string) bool {
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		t.Fatal(err)
	}
	return fs.Type == unix.XFS_SUPER_MAGIC
}

func isFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// helper starts the test binary in a role, with its own mount namespace and the further
// namespaces in flags.
func helper(role string, flags uintptr, files []*os.File, args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = []string{roleEnv + "=" + role}
	cmd.Stderr = os.Stderr
	cmd.ExtraFiles = files
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if flags&syscall.CLONE_NEWUSER != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  flags,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: testUID, Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: testGID, Size: 1}},
			Credential:  &syscall.Credential{NoSetGroups: true}, // root there
			Pdeathsig:   syscall.SIGKILL,
		}
	}
	return cmd
}

func playHelper(role string, args []string) {
	var err error
	switch role {
	case "cycle":
		err = playCycle(args[0], args[1], args[2], args[3])
	case "userns":
		err = playUserNS()
	default:
		err = errors.New("unknown role " + role)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, role+":", err)
		os.Exit(1)
	}
	os.Exit(0)
}
