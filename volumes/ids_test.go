package volumes

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// TestTakenIDs: a project to which anything belongs, even of another program, is not used.
func TestTakenIDs(t *testing.T) {
	requireQuota(t)
	s := openStore(t, ByProjectQuota)
	const id = firstID + 77
	var i ids
	try := func(limited bool) bool {
		t.Helper()
		claim, err := claimID(s.dir, id, limited)
		if err != nil {
			t.Fatal(err)
		}
		if claim != nil {
			claim.Close()
		}
		return claim != nil
	}
	if !try(false) {
		t.Fatal("an unused project is refused")
	}
	file, err := os.Create(filepath.Join(t.TempDir(), "empty"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := setProject(file, id, false); err != nil {
		t.Fatal(err)
	}
	if try(false) || try(true) {
		t.Error("a project that an empty file is in was claimed")
	}
	if err := os.Remove(file.Name()); err != nil {
		t.Fatal(err)
	}
	if try(false) || try(true) {
		t.Error("a project that a deleted but open file is in was claimed")
	}
	file.Close()
	if !soon(func() bool { return try(false) }) {
		t.Error("not free after that")
	}
	if err := linux.SetProjectQuota(s.dir, id, 1<<20, 0); err != nil {
		t.Fatal(err)
	}
	if !soon(func() bool { return try(true) }) || try(false) {
		t.Error("a project with limits is claimed only if nothing else is free")
	}
	var claim *os.File
	if !soon(func() bool { claim, err = claimID(s.dir, id, true); return claim != nil || err != nil }) || err != nil {
		t.Fatal(err)
	}
	if try(true) {
		t.Error("claimed twice")
	}
	claim.Close()
	soon(func() bool { q, _ := linux.GetProjectQuota(s.dir, id); return q.UsedInodes == 0 })
	if err := i.drop(s.dir, id); err != nil {
		t.Error(err)
	}
	if q, err := linux.GetProjectQuota(s.dir, id); q != (linux.ProjectQuota{}) || err != nil {
		t.Errorf("%+v, %v", q, err)
	}
}

// TestTwoStores on one file system never have the same project.
func TestTwoStores(t *testing.T) {
	requireQuota(t)
	stores := []*Store{openStore(t, ByProjectQuota), openStore(t, ByProjectQuota), openStore(t, ByProjectQuota)}
	var all sync.WaitGroup
	var mu sync.Mutex
	seen := map[uint32]int{}
	for _, s := range stores {
		for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
			all.Go(func() {
				if err := s.Make(name, 1<<20, 0); err != nil {
					t.Error(err)
					return
				}
				r, err := s.load(name)
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				seen[r.Project]++
			})
		}
	}
	all.Wait()
	if len(seen) != 18 {
		t.Errorf("18 volumes have %d projects", len(seen))
	}
	// Deliberately claim the same ID at the same moment: at most one gets it.
	const id = firstID + 99
	won := make(chan *os.File, len(stores))
	for _, s := range stores {
		all.Go(func() {
			claim, err := claimID(s.dir, id, false)
			if err != nil {
				t.Error(err)
			}
			won <- claim
		})
	}
	all.Wait()
	close(won)
	winners := 0
	for claim := range won {
		if claim != nil {
			winners++
			claim.Close()
		}
	}
	if winners > 1 {
		t.Errorf("%d have claimed it", winners)
	}
}

// TestRemovedInUse: open files of a removed volume stay limited, and no other volume gets its
// project.
func TestRemovedInUse(t *testing.T) {
	requireQuota(t)
	s := openStore(t, ByProjectQuota)
	mustMake(t, s, "v", 4<<20, 0)
	r, err := s.load("v")
	if err != nil {
		t.Fatal(err)
	}
	root := mustRoot(t, s, "v")
	asUser(t, root, func() (err error) {
		keep, err = os.Create("f")
		return err
	})
	defer keep.Close()
	if err := s.Remove("v"); err != nil {
		t.Fatal(err)
	}
	if claim, err := claimID(s.dir, r.Project, true); claim != nil || err != nil {
		t.Errorf("its project was claimed: %v", err)
	}
	asUser(t, root, func() error {
		if _, err := os.Create("new"); err == nil {
			t.Error("something was made in a deleted directory")
		}
		var written int64
		for {
			n, err := keep.Write(make([]byte, 64<<10))
			written += int64(n)
			if isFull(err) {
				return nil
			}
			if err != nil || written > 8<<20 {
				return errors.Join(err, errors.New("without limit"))
			}
		}
	})
	keep.Close()
	root.Close()
	free := soon(func() bool {
		claim, err := claimID(s.dir, r.Project, true)
		if err != nil {
			t.Error(err)
		}
		if claim != nil {
			claim.Close()
		}
		return claim != nil
	})
	if !free {
		t.Error("its project does not become free")
	}
}

// TestBorder: nothing gets into or out of a volume without being counted.
func TestBorder(t *testing.T) {
	requireQuota(t)
	s := openStore(t, ByProjectQuota)
	mustMake(t, s, "a", 4<<20, 0)
	mustMake(t, s, "b", 4<<20, 0)
	a, b := filepath.Join(s.dir.Name(), "a.dir"), filepath.Join(s.dir.Name(), "b.dir")
	outside := filepath.Join(t.TempDir(), "x")
	if err := errors.Join(os.WriteFile(a+"/f", make([]byte, 1<<20), 0o600), os.Mkdir(a+"/d", 0o700), os.WriteFile(outside, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	// As root, and without the mount boundaries that boxes have.
	attacks := map[string]error{
		"link to another volume":   os.Link(a+"/f", b+"/f"),
		"rename to another volume": os.Rename(a+"/f", b+"/f"),
		"directory to another":     os.Rename(a+"/d", b+"/d"),
		"link from outside":        os.Link(outside, b+"/x"),
		"rename from outside":      os.Rename(outside, b+"/x"),
	}
	if !onXFS(t, a) { // forgets that one, so there only the mounts of boxes are in the way
		attacks["exchange"] = unix.Renameat2(unix.AT_FDCWD, a+"/f", unix.AT_FDCWD, outside, unix.RENAME_EXCHANGE)
	}
	for name, err := range attacks {
		if !errors.Is(err, unix.EXDEV) {
			t.Errorf("%s: %v, want EXDEV", name, err)
		}
	}
	// Moving out is possible if there is no mount boundary, but the file still counts.
	if err := os.Rename(a+"/f", outside+".out"); err != nil {
		t.Fatal(err)
	}
	if st := mustState(t, s, "a"); st.UsedBytes < 1<<20 {
		t.Errorf("%+v", st)
	}
	if err := s.Remove("a"); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(outside + ".out"); err != nil {
		t.Fatal(err)
	}
}
