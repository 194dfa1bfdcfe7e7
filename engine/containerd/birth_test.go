package containerd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/boxd/boxd/internal/testutil"
)

func TestMain(m *testing.M) { testutil.MainUnprivileged(m) }

// newBirth is the birth of a box whose directory is in the state directory.
func newBirth(t *testing.T, state, name string) Birth {
	t.Helper()
	b := Birth{Container: name, Box: filepath.Join(state, "boxes", name), Runc: "/usr/sbin/runc"}
	if err := os.MkdirAll(b.Box, 0o700); err != nil {
		t.Fatal(err)
	}
	return b
}

// TestTwoLaunchers: a launcher that looks for what dead launchers have left takes no birth of another one for
// it, at whatever moment it looks.
func TestTwoLaunchers(t *testing.T) {
	state := t.TempDir()
	e := New(Options{Program: "/nowhere", StateDir: state})
	other := New(Options{Program: "/nowhere", StateDir: state, Runc: func() (string, error) { return "", errors.New("it settles a birth") }})
	born := make(chan struct{})
	looked := make(chan error, 1)
	go func() {
		for {
			entries, _ := os.ReadDir(other.base())
			for _, entry := range entries {
				if err := other.settleOne(t.Context(), entry.Name()); err != nil {
					looked <- fmt.Errorf("%s: %w", entry.Name(), err)
					return
				}
			}
			select {
			case <-born:
				looked <- nil
				return
			default:
			}
		}
	}()
	for i := range 100 {
		m, err := e.attend(newBirth(t, state, fmt.Sprint("c", i)))
		if err != nil {
			t.Error(err)
			break
		}
		m.listener.Close()
		<-m.done
	}
	close(born)
	if err := <-looked; err != nil {
		t.Errorf("the other launcher: %v", err)
	}
}

// TestHalfABirth: a birth that fails leaves nothing that looks like a container.
func TestHalfABirth(t *testing.T) {
	state := t.TempDir()
	e := New(Options{Program: "/nowhere", StateDir: state})
	b := newBirth(t, state, "c")
	b.Runc = "" // to which no symlink can be made
	if _, err := e.attend(b); err == nil {
		t.Fatal("there is a symlink to nothing")
	}
	for _, dir := range []string{e.base(), b.Box} {
		if left, _ := os.ReadDir(dir); len(left) > 0 {
			t.Errorf("left in %s: %v", dir, left)
		}
	}
	if m, err := e.attend(newBirth(t, state, "c")); err != nil {
		t.Errorf("the next one: %v", err)
	} else {
		m.listener.Close()
		<-m.done
	}
}
