package linux

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/testutil"
)

func TestAsOwner(t *testing.T) {
	testutil.RequireRoot(t)
	dir := t.TempDir()
	if err := errors.Join(os.Chmod(filepath.Dir(dir), 0o711), os.Chown(dir, 4711, 4712)); err != nil {
		t.Fatal(err)
	}
	made := filepath.Join(dir, "made")
	err := AsOwner(4711, 4712, func() error { return unix.Mkdir(made, 0o777) })
	var st unix.Stat_t
	if err := errors.Join(err, unix.Stat(made, &st)); err != nil {
		t.Fatal(err)
	}
	if st.Uid != 4711 || st.Gid != 4712 || st.Mode&0o7777 != 0o777 {
		t.Errorf("made with %d:%d, mode %o", st.Uid, st.Gid, st.Mode&0o7777)
	}
}

// Even root has only the owner's rights there, and no other thread is affected.
func TestAsOwnerHasNoCapabilities(t *testing.T) {
	testutil.RequireRoot(t)
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o500); err != nil {
		t.Fatal(err)
	}
	err := AsOwner(0, 0, func() error { return unix.Mkdir(filepath.Join(dir, "x"), 0o700) })
	if !errors.Is(err, unix.EACCES) {
		t.Errorf("root without capabilities, in its own read-only directory: %v", err)
	}
	if err := AsOwner(4711, 4711, func() error { _, err := os.ReadDir(dir); return err }); !errors.Is(err, unix.EACCES) {
		t.Errorf("a stranger: %v", err)
	}
	if err := os.Mkdir(filepath.Join(dir, "y"), 0o700); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}
