package layers

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/testutil"
)

// The layers that boxes write are tested in test/native: these tests need no box and no root.

func TestMain(m *testing.M) { testutil.MainUnprivileged(m) }

var idA = strings.Repeat("a", 64)

func openStore(t *testing.T, path string) *Store {
	t.Helper()
	s, err := Open(path, uint32(os.Geteuid()))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func ok(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// write makes a layer with one file, as a box would.
func write(t *testing.T, s *Store, name string) {
	t.Helper()
	ok(t, s.Make(name))
	dir, err := s.Unpublished(name)
	ok(t, err)
	defer dir.Close()
	ok(t, os.Mkdir(dir.Name()+"/fs", 0o755), os.WriteFile(dir.Name()+"/fs/"+name, nil, 0o644))
}

func chdir(t *testing.T, s *Store) {
	t.Helper()
	t.Chdir(filepath.Join(s.dir.Name(), "new", s.session)) // where names of descriptors lead
}

// wantEmpty: the store has nothing in it but what is published.
func wantEmpty(t *testing.T, path string, published ...string) {
	t.Helper()
	entries, err := os.ReadDir(path)
	ok(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if want := append(published, "new", "trash"); !slices.Equal(names, want) {
		t.Errorf("%q, want %q", names, want)
	}
	for _, dir := range []string{"new", "trash"} {
		if left, err := os.ReadDir(path + "/" + dir); err != nil || len(left) > 0 {
			t.Errorf("in %s: %v, %v", dir, left, err)
		}
	}
}

func TestPublish(t *testing.T) {
	path := t.TempDir() + "/images"
	s := openStore(t, path)
	chdir(t, s)
	write(t, s, "one")
	ok(t, s.Publish("one", idA))
	if _, err := os.Stat(path + "/" + idA + "/fs/one"); err != nil {
		t.Error(err)
	}
	write(t, s, "two")
	ok(t, s.Publish("two", idA))
	if _, err := os.Stat(path + "/" + idA + "/fs/one"); err != nil {
		t.Errorf("a published layer has changed: %v", err)
	}
	if err := s.Publish("two", strings.Repeat("b", 64)); !errors.Is(err, ErrUnknown) {
		t.Errorf("publishing what does not exist: %v", err)
	}
	t.Chdir("/")
	ok(t, s.Close())
	wantEmpty(t, path, idA)
}

// TestUse: a layer that a process uses, as often as it likes, is not removed by any.
func TestUse(t *testing.T) {
	path := t.TempDir() + "/images"
	one, two := openStore(t, path), openStore(t, path)
	chdir(t, one)
	write(t, one, "a")
	ok(t, one.Publish("a", idA))
	_, first, err := two.Use(idA)
	ok(t, err)
	_, second, err := two.Use(idA)
	ok(t, err)
	first()
	for _, s := range []*Store{one, two} {
		if err := s.Remove(idA); !errors.Is(err, ErrInUse) {
			t.Errorf("removing a layer in use: %v", err)
		}
	}
	second()
	ok(t, one.Remove(idA))
	if _, _, err := two.Use(idA); !errors.Is(err, ErrUnknown) {
		t.Errorf("using a removed layer: %v", err)
	}
	ok(t, two.Remove(idA))
	t.Chdir("/")
	ok(t, one.Close(), two.Close())
	wantEmpty(t, path)
}

// TestRemoveInBackground: Remove does not wait for the deletion, and Close does.
func TestRemoveInBackground(t *testing.T) {
	path := t.TempDir() + "/images"
	s := openStore(t, path)
	chdir(t, s)
	write(t, s, "a")
	ok(t, s.Publish("a", idA))
	s.sweeping.Lock() // the deletion of another layer takes long
	ok(t, s.Remove(idA))
	if _, err := os.Stat(path + "/" + idA); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a removed layer: %v", err)
	}
	s.sweeping.Unlock()
	t.Chdir("/")
	ok(t, s.Close())
	wantEmpty(t, path)
}

// TestSessions: Open deletes the unpublished layers of processes that have ended, and no others.
func TestSessions(t *testing.T) {
	path := t.TempDir() + "/images"
	dead, living := openStore(t, path), openStore(t, path)
	chdir(t, dead)
	write(t, dead, "half")
	chdir(t, living)
	write(t, living, "half")
	t.Chdir("/")
	dead.sweeper.Wait()
	ok(t, dead.mine.Close()) // as the kernel does when a process ends
	ok(t, os.Mkdir(path+"/trash/old", 0o700), os.WriteFile(path+"/new/stray", nil, 0o600))
	s := openStore(t, path)
	s.sweeper.Wait()
	dir, err := living.Unpublished("half")
	ok(t, err)
	dir.Close()
	ok(t, living.Abandon("half"), s.Close(), living.Close(), dead.dir.Close(), dead.parent.Close(), dead.trash.Close())
	wantEmpty(t, path)
}

// TestOpenTogether: processes that open a new store at the same time all get a session.
func TestOpenTogether(t *testing.T) {
	path := t.TempDir() + "/images"
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 20 {
				s, err := Open(path, uint32(os.Geteuid()))
				if err == nil {
					err = errors.Join(s.Make("a"), s.Abandon("a"), s.Close())
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	s := openStore(t, path)
	s.sweeper.Wait() // the others may have been closed before they had emptied the trash
	ok(t, s.Close())
	wantEmpty(t, path)
}

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	ok(t, os.Mkdir(dir+"/open", 0o755), os.Chmod(dir+"/open", 0o755), os.Mkdir(dir+"/closed", 0o700), os.Symlink("closed", dir+"/link"), os.WriteFile(dir+"/file", nil, 0o600))
	for _, name := range []string{"open", "link", "file", "missing/parent"} {
		if s, err := Open(filepath.Join(dir, name), 0); err == nil {
			t.Errorf("%s was accepted", name)
			s.Close()
		}
	}
}

// TestRefused: hostile lists; test/native has those that boxes make.
func TestRefused(t *testing.T) {
	s := openStore(t, t.TempDir()+"/images")
	defer s.Close()
	chdir(t, s)
	defer t.Chdir("/")
	write(t, s, "a")
	for _, list := range []string{"d", "\x00", "d\x00", "/\x00", "..\x00", "../fs\x00", "a\x00", strings.Repeat("a/", 5000) + "\x00"} {
		ok(t, os.WriteFile("a/opaque", []byte(list), 0o600))
		if err := s.Publish("a", idA); !errors.Is(err, ErrRefused) {
			t.Errorf("%.20q: %v", list, err)
		}
	}
	ok(t, os.Remove("a/opaque"), unix.Mkfifo("a/opaque", 0o600))
	if err := s.Publish("a", idA); !errors.Is(err, ErrRefused) {
		t.Errorf("a FIFO: %v", err)
	}
	ok(t, s.Abandon("a"))
}
