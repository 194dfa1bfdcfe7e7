package volumes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/testutil"
)

// TestHalfStates: Open, Make and Remove must cope with the state after each step, in which a
// killed process may leave a volume.
func TestHalfStates(t *testing.T) {
	type state struct {
		name string
		by   string
		make func(t *testing.T, p place)
		// there says whether it is a volume afterwards.
		there bool
	}
	text := func(name, text string) func(t *testing.T, p place) {
		return func(t *testing.T, p place) {
			if err := os.WriteFile(filepath.Join(p.data, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	remove := func(names ...string) func(t *testing.T, p place) {
		return func(t *testing.T, p place) {
			for _, name := range names {
				if err := os.RemoveAll(filepath.Join(p.data, name)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	record := fmt.Sprintf(`{"by":"image","bytes":%d,"inodes":1024}`, 4<<20)
	states := []state{
		{"half an image", ByImage, func(t *testing.T, p place) { remove("v.volume", "v.img")(t, p); text(".new-abc", "garbage")(t, p) }, false},
		{"record without image", ByImage, remove("v.img"), false},
		{"image without record", ByImage, remove("v.volume"), true},
		{"empty record", ByImage, text("v.volume", ""), true},
		{"record of garbage", ByImage, text("v.volume", "\x00\x00{"), true},
		{"record of the other kind", ByImage, text("v.volume", strings.Replace(record, `"image"`, `"project-quota","project":1652031489`, 1)), true},
		{"half a record beside it", ByImage, text(".new-record", record[:5]), true},
		{"record ahead of the image", ByImage, text("v.volume", strings.Replace(record, fmt.Sprint(4<<20), fmt.Sprint(6<<20), 1)), true},
		{"image that has grown and its file system not", ByImage, func(t *testing.T, p place) {
			if err := os.Truncate(filepath.Join(p.data, "v.img"), 16<<20); err != nil {
				t.Fatal(err)
			}
		}, true},
		{"trash", ByImage, func(t *testing.T, p place) {
			if err := os.MkdirAll(filepath.Join(p.data, trashName, ".new-x/a/b/c"), 0o700); err != nil {
				t.Fatal(err)
			}
		}, true},
		{"record without directory", ByProjectQuota, remove("v.dir"), false},
		{"directory without record", ByProjectQuota, remove("v.volume"), true},
		{"empty record of a directory", ByProjectQuota, text("v.volume", ""), true},
		{"directory that is not one yet", ByProjectQuota, func(t *testing.T, p place) {
			if err := os.Rename(filepath.Join(p.data, "v.dir"), filepath.Join(p.data, ".new-v")); err != nil {
				t.Fatal(err)
			}
		}, false},
		{"directory in the trash, record still there", ByProjectQuota, func(t *testing.T, p place) {
			err := errors.Join(os.MkdirAll(filepath.Join(p.data, trashName), 0o700), os.Rename(filepath.Join(p.data, "v.dir"), filepath.Join(p.data, trashName, "x")))
			if err != nil {
				t.Fatal(err)
			}
		}, false},
	}
	for _, st := range states {
		for _, then := range []string{"list", "make", "remove", "root"} {
			t.Run(st.name+"/"+then, func(t *testing.T) {
				if st.by == ByProjectQuota {
					requireQuota(t)
				} else {
					testutil.Long(t)
					requireLoop(t)
				}
				p := newPlace(t)
				s := p.open(t, st.by)
				mustMake(t, s, "v", 4<<20, 1024)
				mustMake(t, s, "neighbour", 4<<20, 1024)
				if root := mustRoot(t, s, "v"); st.there {
					asUser(t, root, func() error { return os.WriteFile("kept", nil, 0o600) })
					root.Close()
				} else {
					root.Close()
				}
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				st.make(t, p)
				s = p.open(t, st.by)
				if left, err := linux.ReadNames(s.private); len(left) != 0 || err != nil {
					t.Errorf("mounted by Open: %q, %v", left, err)
				}
				switch then {
				case "make":
					mustMake(t, s, "v", 8<<20, 2048)
					mustRoot(t, s, "v").Close()
				case "root":
					root, err := s.Root("v")
					if (err == nil) != st.there || err != nil && !errors.Is(err, ErrUnknown) {
						t.Errorf("root: %v", err)
					}
					if root != nil {
						asUser(t, root, func() error { return second(os.Stat("kept")) })
						root.Close()
					}
				case "list":
					states, err := s.List()
					want := 1
					if st.there {
						want = 2
					}
					if err != nil || len(states) != want {
						t.Errorf("%v, %v", states, err)
					}
					for _, got := range states {
						if got.Bytes < 4<<20 || got.Bytes > 6<<20 || got.Inodes < 1024 || got.Inodes > 1100 || got.By != st.by {
							t.Errorf("%+v", got)
						}
					}
					if left, err := linux.ReadNames(s.private); len(left) != 0 || err != nil {
						t.Errorf("mounted by List: %q, %v", left, err)
					}
				}
				if err := errors.Join(s.Remove("v"), s.Remove("neighbour")); err != nil {
					t.Error(err)
				}
				s.sweeper.Wait()
				if err := s.Close(); err != nil {
					t.Error(err)
				}
				onlyMarker(t, p)
			})
		}
	}
}

// TestKilled kills a process at random moments while it creates, grows, fills, copies and
// removes volumes.
func TestKilled(t *testing.T) {
	testutil.Long(t)
	kinds(t, func(t *testing.T, by string) {
		p := newPlace(t)
		seed := uint64(time.Now().UnixNano())
		t.Log("seed", seed)
		random := rand.New(rand.NewPCG(seed, 0))
		for round := range 60 {
			cmd := helper("cycle", 0, nil, p.data, p.mounts, fmt.Sprint(random.Uint64()), by)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(out, make([]byte, 1)); err != nil { // it begins
				t.Fatal(err)
			}
			time.Sleep(time.Duration(random.IntN(40_000)) * time.Microsecond)
			cmd.Process.Kill()
			cmd.Wait()
			s, err := Open(p.data, p.mounts, testUID, testGID)
			if err != nil {
				t.Fatal(err)
			}
			if by == ByImage {
				s.noQuota = ErrNoQuota
			}
			states, err := s.List()
			if err != nil {
				t.Errorf("round %d: %v", round, err)
			}
			for _, st := range states {
				root, err := s.Root(st.Name)
				if err != nil {
					t.Errorf("round %d: %v", round, err)
					continue
				}
				if err := tryAsUser(root, func() error {
					return errors.Join(os.WriteFile("after", []byte("x"), 0o600), os.Remove("after"))
				}); onlyFull(err) != nil {
					t.Errorf("round %d: %v", round, err)
				}
				root.Close()
			}
			if round%5 == 4 {
				for _, st := range states {
					if err := s.Remove(st.Name); err != nil {
						t.Errorf("round %d: %v", round, err)
					}
				}
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			if round%5 == 4 {
				onlyMarker(t, p)
			}
		}
		if by == ByProjectQuota {
			noLimitsLeft(t, p)
		}
	})
}

// noLimitsLeft checks that no project in our range has limits or usage.
func noLimitsLeft(t *testing.T, p place) {
	t.Helper()
	dir, err := os.Open(filepath.Dir(p.data))
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	for id := uint32(firstID); id <= lastID; id++ {
		q, err := linux.GetProjectQuota(dir, id)
		if err != nil {
			t.Fatal(err)
		}
		if q.UsedBytes != 0 || q.UsedInodes != 0 {
			t.Errorf("project %d: %+v", id, q)
		}
	}
}

// playCycle makes, changes and removes volumes until it is killed.
func playCycle(data, mounts, seed, by string) error {
	var n uint64
	if _, err := fmt.Sscan(seed, &n); err != nil {
		return err
	}
	random := rand.New(rand.NewPCG(n, 1))
	s, err := Open(data, mounts, testUID, testGID)
	if err != nil {
		return err
	}
	if by == ByImage {
		s.noQuota = ErrNoQuota
	}
	fmt.Print(".")
	size := map[string]int64{}
	states, err := s.List()
	if err != nil {
		return err
	}
	for _, st := range states {
		size[st.Name] = st.Bytes
	}
	for {
		name := fmt.Sprintf("v%d", random.IntN(4))
		switch random.IntN(6) {
		case 5:
			if by == ByImage {
				from := fmt.Sprintf("v%d", random.IntN(4))
				if err = s.Copy(context.Background(), from, name, 0, 0, nil); err == nil {
					size[name] = size[from]
				}
			}
		case 0, 1:
			size[name] = max(size[name], 1<<20) + int64(random.IntN(1<<20))
			err = s.Make(name, size[name], 0)
		case 2:
			err = s.Remove(name)
			delete(size, name)
		case 3:
			err = s.Release(name)
		case 4:
			var root *os.File
			if root, err = s.Root(name); err == nil {
				err = onlyFull(tryAsUser(root, func() error {
					return os.WriteFile(fmt.Sprint(random.IntN(100)), make([]byte, random.IntN(200_000)), 0o600)
				}))
				root.Close()
			} else if errors.Is(err, ErrUnknown) {
				err = nil
			}
		}
		if err != nil && !errors.Is(err, ErrBusy) && !errors.Is(err, ErrUnknown) && !errors.Is(err, ErrWritten) && !errors.Is(err, ErrExists) {
			return err
		}
	}
}

// TestDeepTree: a tree that a box leaves can be deeper than any path, and change while it is
// deleted.
func TestDeepTree(t *testing.T) {
	requireQuota(t)
	p := newPlace(t)
	s := p.open(t, ByProjectQuota)
	mustMake(t, s, "v", 64<<20, 20_000)
	root := mustRoot(t, s, "v")
	done, stopped := make(chan struct{}), make(chan error)
	asUser(t, root, func() error {
		for range 2500 {
			if err := errors.Join(os.Mkdir("d", 0o700), os.WriteFile("f", nil, 0o600), unix.Chdir("d")); err != nil {
				return err
			}
		}
		return nil
	})
	go func() {
		stopped <- tryAsUser(root, func() error {
			for i := 0; ; i++ {
				select {
				case <-done:
					return nil
				default:
					// Everything may fail once it is being deleted.
					os.MkdirAll(fmt.Sprintf("busy/%d/a", i%50), 0o700)
					os.Rename(fmt.Sprintf("busy/%d", i%50), fmt.Sprintf("d/%d", i%50))
					os.Symlink("/etc", fmt.Sprintf("busy/link%d", i%50))
				}
			}
		})
	}()
	if err := s.Remove("v"); err != nil {
		t.Error(err)
	}
	close(done)
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	root.Close()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	onlyMarker(t, p)
	if _, err := os.Stat("/etc/passwd"); err != nil {
		t.Error(err)
	}
}
