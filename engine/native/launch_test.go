package native

import (
	"errors"
	"os"
	"testing"

	"github.com/boxd/boxd/engine"
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
	sealed, err := sealed.Copy(src, "true")
	if err != nil {
		t.Fatal(err)
	}
	defer sealed.Close()
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
		exe := at(sealed, base+offset)
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
