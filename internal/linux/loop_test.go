package linux

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/testutil"
)

// TestLoopBind tests both ways to bind a device. The second is for kernels before 5.8.
func TestLoopBind(t *testing.T) {
	testutil.RequireRoot(t)
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) && exec.Command("/sbin/modprobe", "loop").Run() == nil { // as udev's node does
		control, err = os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	}
	if err != nil {
		t.Skip("no loop devices: ", err)
	}
	defer control.Close()
	for name, bind := range map[string]func(dev, file *os.File, flags uint32) error{"at once": LoopBind, "in steps": loopBindSteps} {
		t.Run(name, func(t *testing.T) {
			file, err := os.Create(filepath.Join(t.TempDir(), "image"))
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			if err := file.Truncate(1 << 20); err != nil {
				t.Fatal(err)
			}
			st, err := Fstat(file)
			if err != nil {
				t.Fatal(err)
			}
			dev := freeLoop(t, control, func(dev *os.File) error { return bind(dev, file, unix.LO_FLAGS_AUTOCLEAR|unix.LO_FLAGS_DIRECT_IO) })
			info, err := LoopStatus(dev)
			if err != nil || info.Device != st.Dev || info.Inode != st.Ino || info.Flags&unix.LO_FLAGS_AUTOCLEAR == 0 {
				t.Errorf("%+v, %v", info, err)
			}
			if err := bind(dev, file, 0); !errors.Is(err, unix.EBUSY) {
				t.Errorf("bound twice: %v", err)
			}
			if err := LoopSetFlags(dev, 0); err != nil {
				t.Error(err)
			}
			if info, err := LoopStatus(dev); err != nil || info.Flags&unix.LO_FLAGS_AUTOCLEAR != 0 {
				t.Errorf("flags %#x, %v", info.Flags, err)
			}
			if err := LoopSetFlags(dev, unix.LO_FLAGS_AUTOCLEAR); err != nil {
				t.Error(err)
			}
			if err := file.Truncate(3 << 20); err != nil {
				t.Fatal(err)
			}
			if err := LoopSetCapacity(dev); err != nil {
				t.Error(err)
			}
			if size, err := dev.Seek(0, 2); size != 3<<20 || err != nil {
				t.Errorf("has %d bytes, %v", size, err)
			}
			dev.Close()
			// udev may have it open for a moment.
			for until := time.Now().Add(testutil.Patience()); ; time.Sleep(time.Millisecond) {
				again, err := os.Open(dev.Name())
				if err != nil {
					t.Fatal(err)
				}
				info, err := LoopStatus(again)
				again.Close()
				if errors.Is(err, unix.ENXIO) || err == nil && info.Inode != st.Ino {
					break // free, or already somebody else's
				}
				if time.Now().After(until) {
					t.Fatal("the device does not free itself")
				}
			}
		})
	}
}

// freeLoop opens a free device for which bind succeeds.
func freeLoop(t *testing.T, control *os.File, bind func(dev *os.File) error) *os.File {
	t.Helper()
	for try := 0; ; try++ {
		n, err := LoopFree(control)
		if err != nil {
			t.Fatal(err)
		}
		dev, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", n), os.O_RDWR, 0)
		if err == nil {
			if err = bind(dev); err == nil {
				t.Cleanup(func() { dev.Close() })
				return dev
			}
			dev.Close()
		}
		if try == 100 {
			t.Fatal(err)
		}
	}
}

// TestProjectQuota tests both ways to call quotactl. The second is for kernels before 5.14.
func TestProjectQuota(t *testing.T) {
	testutil.RequireRoot(t)
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	on, err := ProjectQuotaOn(dir)
	if !on {
		if os.Getenv("BOXD_TEST_VM") != "" {
			t.Fatal("no project quota: ", err)
		}
		t.Skip("no project quota: ", err)
	}
	st, err := Fstat(dir)
	if err != nil {
		t.Fatal(err)
	}
	// As udev would do, which the virtual machine lacks.
	if _, err := blockDevice(dir); errors.Is(err, unix.ENOENT) {
		node := fmt.Sprintf("/dev/block/%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev))
		if err := errors.Join(os.MkdirAll("/dev/block", 0o755), unix.Mknod(node, unix.S_IFBLK|0o600, int(st.Dev))); err != nil {
			t.Fatal(err)
		}
		defer os.Remove(node)
	}
	const id = 0x6278fff0
	if err := SetProjectQuota(dir, id, 5000, 7); err != nil {
		t.Fatal(err)
	}
	defer SetProjectQuota(dir, id, 0, 0)
	want := ProjectQuota{Bytes: 5120, Inodes: 7}
	if q, err := GetProjectQuota(dir, id); q != want || err != nil {
		t.Errorf("%+v, %v", q, err)
	}
	var q ifDqblk
	if err := quotactlDevice(dir, "Q_GETQUOTA", qGetQuota<<8|projectQuota, id, unsafe.Pointer(&q)); err != nil || q.bhard != 5 || q.ihard != 7 {
		t.Errorf("by device: %+v, %v", q, err)
	}
	if !hasQuotactlFd() {
		t.Log("this kernel has no quotactl_fd")
	}
	// Without quota, and with none at all.
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if on, err := ProjectQuotaOn(null); on || err == nil {
		t.Errorf("on /dev: %v, %v", on, err)
	}
	if _, err := GetFileAttr(dir); err != nil {
		t.Error(err)
	}
}
