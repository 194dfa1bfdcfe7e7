package volumes

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

const (
	fsIocGetFlags  = 0x80086601
	fsIocSetFlags  = 0x40086602
	ext4ProjectInh = 0x20000000 // EXT4_PROJINHERIT_FL
)

// playUserNS is root in a user namespace, and tries to leave the project of the volume whose
// root is descriptor 3. It prints what it could do.
func playUserNS() error {
	if err := unix.Fchdir(3); err != nil {
		return err
	}
	could := map[string]string{}
	try := func(name string, err error) {
		if err == nil {
			could[name] = "done"
		}
	}
	for _, name := range []string{".", "dir", "file"} {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		a, err := linux.GetFileAttr(f)
		if err != nil {
			return err
		}
		other := a
		other.Project = 0
		try(name+": project 0", linux.SetFileAttr(f, other))
		other.Project++
		try(name+": project 1", linux.SetFileAttr(f, other))
		if name != "file" {
			other = a
			other.Flags &^= linux.ProjectInherit
			try(name+": no inheritance", linux.SetFileAttr(f, other))
			flags := 0
			if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), fsIocGetFlags, uintptr(unsafe.Pointer(&flags))); errno != 0 {
				return errno
			}
			if flags&ext4ProjectInh == 0 {
				return fmt.Errorf("%s has flags %#x", name, flags)
			}
			flags &^= ext4ProjectInh
			_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), fsIocSetFlags, uintptr(unsafe.Pointer(&flags)))
			if errno == 0 {
				try(name+": no inheritance by flags", nil)
			}
		}
		try(name+": limits", linux.SetProjectQuota(f, a.Project, 0, 0))
		f.Close()
	}
	// New files must still be in the project.
	if err := errors.Join(os.Mkdir("later", 0o700), os.WriteFile("later/file", make([]byte, 1<<20), 0o600)); err != nil {
		return err
	}
	n, err := fill("all")
	if !isFull(err) {
		could["fill"] = fmt.Sprint(n, err)
	}
	return json.NewEncoder(os.Stdout).Encode(could)
}

// TestUserNamespace: boxes are in user namespaces.
func TestUserNamespace(t *testing.T) {
	requireQuota(t)
	s := openStore(t, ByProjectQuota)
	mustMake(t, s, "v", 8<<20, 0)
	root := mustRoot(t, s, "v")
	asUser(t, root, func() error { return errors.Join(os.Mkdir("dir", 0o700), os.WriteFile("file", nil, 0o600)) })
	cmd := helper("userns", syscall.CLONE_NEWUSER|syscall.CLONE_NEWNS, []*os.File{root})
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var could map[string]string
	if err := json.Unmarshal(out, &could); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for name, what := range could {
		t.Errorf("%s: %s", name, what)
	}
	if st := mustState(t, s, "v"); st.UsedBytes < 7<<20 || st.UsedInodes != 6 {
		t.Errorf("%+v", st)
	}
	mustRoot(t, s, "v").Close()
}
