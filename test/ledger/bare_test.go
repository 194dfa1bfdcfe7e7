package ledger

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/testutil"
)

// How much is made without a box around it: more than the noise of a host, and of its pools
// not more than they can spare.
const (
	bareBytes   = 8 << 20
	bareObjects = 10_000
	bareOfPool  = 1000
)

// TestCountersCanTell makes a few objects of each kind where nothing is refused, and wants
// the kind's counter to rise: one that counts something else would let every box pass.
func TestCountersCanTell(t *testing.T) {
	testutil.RequireRoot(t)
	for _, k := range kinds {
		if isClaim(k) || k.bareless != "" {
			continue
		}
		t.Run(k.name, func(t *testing.T) {
			var last string
			for range 5 { // other programs of the host move some counters, and so does what was held before
				claims, grown := makeBare(t, k)
				want := claims.bytes / 8 // sizes are estimates: kernels differ
				if k.limit().unit != "bytes" {
					want = claims.objects / 2
				}
				if claims.objects+claims.bytes > 0 && grown >= max(1, want) {
					return
				}
				last = fmt.Sprintf("%d objects of together %d bytes were made, and the counter rose by %d (%s)", claims.objects, claims.bytes, grown, claims.reason)
			}
			t.Error(last)
		})
	}
}

// isClaim reports whether a kind is counted by what system calls took, or by the box's own
// groups, which are not there.
func isClaim(k kind) bool {
	for _, c := range []counter{claimed, made} {
		if reflect.ValueOf(k.held).Pointer() == reflect.ValueOf(c).Pointer() {
			return true
		}
	}
	return false
}

// makeBare has a process in namespaces of its own make objects of a kind.
func makeBare(t *testing.T, k kind) (claims report, grown int64) {
	t.Helper()
	hold, release, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer release.Close()
	c := exec.CommandContext(t.Context(), "/proc/self/exe")
	c.Env = []string{roleKind + "=" + k.name, roleWorker + "=0", roleTime + "=300ms", roleBare + "=1", "GOMAXPROCS=2"}
	c.Stdin, c.Stderr = hold, os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWIPC}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	err = c.Start()
	hold.Close()
	if err != nil {
		t.Fatal(err)
	}
	s := &scene{proc: fmt.Sprint("/proc/", c.Process.Pid), reports: map[int]report{}}
	before := read(t, k.held, s)
	for lines := bufio.NewScanner(out); !claims.done && lines.Scan(); {
		if claims, err = parseReport(lines.Text()); err != nil {
			t.Error(err)
		}
	}
	grown = read(t, k.held, s) - before
	release.Close()
	if _, err := io.Copy(io.Discard, out); err != nil {
		t.Error(err)
	}
	if err := c.Wait(); err != nil {
		t.Error(err)
	}
	return claims, grown
}

// leaveHost gives this process, which has new namespaces, the directories and the interface of
// a box, so that nothing it makes is of the host.
func leaveHost() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return os.NewSyscallError("mount", err)
	}
	for _, dir := range []string{"/tmp", "/dev/shm", "/home"} {
		if err := unix.Mount("ledger", dir, "tmpfs", 0, "size=64m"); err != nil {
			return fmt.Errorf("mounting a tmpfs on %q: %w", dir, err)
		}
	}
	if err := os.Mkdir(filepath.Join("/home", "box"), 0o700); err != nil {
		return err
	}
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return os.NewSyscallError("getrlimit", err)
	}
	files.Max = min(files.Max, bareObjects+100)
	files.Cur = files.Max
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return os.NewSyscallError("setrlimit", err)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	up, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	up.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, up); err != nil {
		return os.NewSyscallError("ioctl", err)
	}
	return os.WriteFile("/proc/sys/net/ipv4/ping_group_range", []byte("0 2147483647"), 0)
}
