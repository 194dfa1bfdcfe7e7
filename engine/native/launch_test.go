package native

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native/programs"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/sealed"
	"golang.org/x/sys/unix"
)

// TestStartPool: a size of the pool that no launcher has is refused, whoever asks.
func TestStartPool(t *testing.T) {
	for _, boxes := range []int{-1, engine.MaxPool + 1} {
		_, err := Start(t.Context(), Options{Pool: boxes})
		_, lerr := StartLauncher(t.Context(), LauncherOptions{Pool: boxes})
		for _, err := range []error{err, lerr} {
			if field, ok := errors.AsType[*engine.FieldError](err); !ok || field.Field != "pool" {
				t.Errorf("a pool of %d boxes: %v", boxes, err)
			}
		}
	}
}

// TestStartInitAnyNumbers: wherever the descriptor of the program lies among those that the child gets, the
// child executes the program and nothing that os/exec has moved there (golang/go#61751).
func TestStartInitAnyNumbers(t *testing.T) {
	src, err := os.Open("/bin/true")
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	program, err := sealed.Copy(src, "true")
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	const base = 200 // free, with the numbers above it
	at := func(f *os.File, n int) *os.File {
		if err := unix.Dup3(int(f.Fd()), n, unix.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
		return os.NewFile(uintptr(n), "test")
	}
	for offset := -3; offset <= 12; offset++ {
		if offset >= 0 && offset < 3 {
			continue // these are the others
		}
		var extra []*os.File
		for i := range 3 {
			extra = append(extra, at(src, base+i))
		}
		exe := at(program, base+offset)
		cmd, err := startInit(exe, extra, 0)
		if err == nil {
			err = cmd.Wait()
		}
		if err != nil {
			t.Errorf("program at %d, others at %d to %d: %v", base+offset, base, base+2, err)
		}
		exe.Close()
		linux.CloseAll(extra)
	}
}

// TestEarlyCopy: a launcher runs from the copy of boxd-init that was begun before it was asked for.
func TestEarlyCopy(t *testing.T) {
	dir := t.TempDir()
	program, err := os.ReadFile("/bin/true")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{programs.Init, programs.Agent, programs.Unpacker} {
		if err := os.WriteFile(filepath.Join(dir, name), program, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// inodes are those of the copies that this process has.
	inodes := func() (list []uint64) {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			path := filepath.Join("/proc/self/fd", e.Name())
			var st unix.Stat_t
			if to, err := os.Readlink(path); err == nil && strings.HasPrefix(to, "/memfd:"+programs.Init) && unix.Stat(path, &st) == nil {
				list = append(list, st.Ino)
			}
		}
		return list
	}
	path := filepath.Join(dir, programs.Init)
	sealed.Begin(path, programs.Init)
	var begun []uint64
	for end := time.Now().Add(10 * time.Second); len(begun) == 0 && time.Now().Before(end); time.Sleep(time.Millisecond) {
		begun = inodes()
	}
	exe, more, err := openPrograms(path)
	if err != nil {
		t.Fatal(err)
	}
	defer exe.Close()
	defer more.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(exe.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	if len(begun) != 1 || begun[0] != st.Ino || len(inodes()) != 1 {
		t.Errorf("begun %v, executed %d, then there are %v", begun, st.Ino, inodes())
	}
}
