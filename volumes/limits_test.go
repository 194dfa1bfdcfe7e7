package volumes

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestBytes(t *testing.T) {
	kinds(t, func(t *testing.T, by string) {
		const limit = 16 << 20
		s := openStore(t, by)
		mustMake(t, s, "full", limit, 0)
		mustMake(t, s, "neighbour", limit, 0)
		for round := range 2 {
			var n int64
			asUser(t, mustRoot(t, s, "full"), func() (err error) {
				if n, err = fill("file"); !isFull(err) {
					return fmt.Errorf("wrote %d bytes, then %w, want no space", n, err)
				}
				return nil
			})
			if n > limit || n < limit-limit/50 {
				t.Errorf("round %d: wrote %d bytes of %d", round, n, limit)
			}
			if st := mustState(t, s, "full"); st.UsedBytes < n || st.UsedBytes > limit || st.Bytes != limit || st.By != by {
				t.Errorf("state %+v after %d bytes", st, n)
			}
			asUser(t, mustRoot(t, s, "neighbour"), func() error {
				n, err := fill("file")
				if n < limit-limit/50 {
					return fmt.Errorf("beside a full volume %d bytes could be written: %w", n, err)
				}
				return os.Remove("file")
			})
			asUser(t, mustRoot(t, s, "full"), func() error { return os.Remove("file") })
		}
	})
}

func TestInodes(t *testing.T) {
	kinds(t, func(t *testing.T, by string) {
		s := openStore(t, by)
		mustMake(t, s, "small", 16<<20, 100)
		mustMake(t, s, "neighbour", 16<<20, 100)
		most := mustState(t, s, "small").Inodes
		if most < 100 || most > 120 || by == ByProjectQuota && most != 100 {
			t.Errorf("has %d inodes, asked for 100", most)
		}
		asUser(t, mustRoot(t, s, "small"), func() error {
			n, err := crowd("f")
			if !isFull(err) || n != most-1 {
				t.Errorf("made %d files, then %v; want %d, as the root counts", n, err, most-1)
			}
			if err := os.Mkdir("d", 0o700); !isFull(err) {
				t.Errorf("mkdir: %v", err)
			}
			if err := os.Symlink("x", "s"); !isFull(err) {
				t.Errorf("symlink: %v", err)
			}
			if err := unix.Mkfifo("p", 0o600); !isFull(err) {
				t.Errorf("mkfifo: %v", err)
			}
			if fd, err := unix.Open(".", unix.O_TMPFILE|unix.O_WRONLY, 0o600); err == nil {
				unix.Close(fd)
				t.Error("a nameless file is not counted")
			}
			if err := os.Link("f0", "l"); err != nil {
				t.Errorf("a hard link needs no inode: %v", err)
			}
			return nil
		})
		if st := mustState(t, s, "small"); st.UsedInodes != st.Inodes {
			t.Errorf("full, but %+v", st)
		}
		asUser(t, mustRoot(t, s, "neighbour"), func() error { return os.WriteFile("f", nil, 0o600) })
	})
}

// TestTricks are ways to have more than the limit.
func TestTricks(t *testing.T) {
	const limit = 4 << 20
	for _, test := range []struct {
		name string
		do   func() error // must leave less than 1 MiB to write
		free func() error
	}{
		{"deleted but open", func() error {
			if _, err := fill("x"); !isFull(err) {
				return err
			}
			f, err := os.Open("x")
			if err != nil {
				return err
			}
			keep = f
			return os.Remove("x")
		}, func() error { return keep.Close() }},
		{"nameless", func() error {
			fd, err := unix.Open(".", unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
			if err != nil {
				return err
			}
			keep = os.NewFile(uintptr(fd), "nameless")
			_, err = fill(fmt.Sprintf("/proc/self/fd/%d", fd))
			if !isFull(err) {
				return err
			}
			return nil
		}, func() error { return keep.Close() }},
		{"preallocated", func() error { return allocate("x", 0, limit-(1<<20)) }, func() error { return os.Remove("x") }},
		{"preallocated beyond the end", func() error { return allocate("x", unix.FALLOC_FL_KEEP_SIZE, limit-(1<<20)) }, func() error { return os.Remove("x") }},
		{"holes that are filled", func() error {
			f, err := os.Create("x")
			if err != nil {
				return err
			}
			defer f.Close()
			if err := f.Truncate(64 * limit); err != nil {
				return fmt.Errorf("a hole takes no space: %w", err)
			}
			for at := int64(0); ; at += 1 << 20 {
				if _, err := f.WriteAt(make([]byte, 64<<10), at); err != nil {
					return errors.Join(f.Sync(), onlyFull(err))
				}
				if at%(8<<20) == 0 {
					if err := f.Sync(); err != nil {
						return onlyFull(err)
					}
				}
			}
		}, func() error { return os.Remove("x") }},
		{"a hole punched is free again", func() error {
			if _, err := fill("y"); !isFull(err) {
				return err
			}
			f, err := os.OpenFile("y", os.O_RDWR, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			if err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 2<<20); isFull(err) {
				return nil // XFS wants space for that: harmless
			} else if err != nil {
				return err
			}
			n, err := fill("z")
			if n < 1<<20 || n > 3<<20 {
				return fmt.Errorf("%d bytes could be written: %w", n, err)
			}
			return nil
		}, func() error { os.Remove("z"); return os.Remove("y") }},
		{"many directories", func() error {
			for i := 0; ; i++ {
				if err := os.MkdirAll(fmt.Sprintf("d/%d", i), 0o700); err != nil {
					return onlyFull(err)
				}
			}
		}, func() error { return os.RemoveAll("d") }},
		{"extended attributes", func() error {
			if err := os.Mkdir("a", 0o700); err != nil {
				return err
			}
			for i := 0; ; i++ {
				name := fmt.Sprintf("a/%d", i)
				if err := os.WriteFile(name, nil, 0o600); err != nil {
					return onlyFull(err)
				}
				if err := unix.Setxattr(name, "user.x", fmt.Appendf(make([]byte, 3000), "%d", i), 0); err != nil {
					return onlyFull(err)
				}
			}
		}, func() error { return os.RemoveAll("a") }},
	} {
		t.Run(test.name, func(t *testing.T) {
			kinds(t, func(t *testing.T, by string) {
				s := openStore(t, by)
				mustMake(t, s, "v", limit, 5000)
				root := mustRoot(t, s, "v")
				asUser(t, root, test.do)
				asUser(t, root, func() error {
					n, err := fill("more")
					if n > 1<<20 || !isFull(err) {
						t.Errorf("%d bytes more could be written, then %v", n, err)
					}
					os.Remove("more")
					return nil
				})
				if st := mustState(t, s, "v"); st.UsedBytes > limit {
					t.Errorf("%+v", st)
				}
				asUser(t, root, test.free)
				if by == ByImage { // frees what was deleted at once, too
					unix.Sync()
				}
				if !soon(func() bool { return mustState(t, s, "v").UsedBytes < 1<<20 }) {
					t.Errorf("after deleting all: %+v", mustState(t, s, "v"))
				}
			})
		})
	}
}

var keep *os.File

func onlyFull(err error) error {
	if isFull(err) {
		return nil
	}
	return err
}

func allocate(name string, mode uint32, size int64) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Fallocate(int(f.Fd()), mode, 0, 4*size); !isFull(err) {
		return fmt.Errorf("preallocating more than the limit: %w", err)
	}
	if err := f.Truncate(0); err != nil {
		return err
	}
	return unix.Fallocate(int(f.Fd()), mode, 0, size)
}

func TestStatfs(t *testing.T) {
	kinds(t, func(t *testing.T, by string) {
		s := openStore(t, by)
		mustMake(t, s, "v", 32<<20, 500)
		asUser(t, mustRoot(t, s, "v"), func() error {
			if err := os.WriteFile("f", make([]byte, 1<<20), 0o600); err != nil {
				return err
			}
			var fs unix.Statfs_t
			if err := unix.Statfs(".", &fs); err != nil {
				return err
			}
			if avail := int64(fs.Bavail) * fs.Bsize; avail > 31<<20 || avail < 30<<20 {
				t.Errorf("%d bytes are free, of 32 MiB without 1 MiB", avail)
			}
			if fs.Ffree > 515 || fs.Ffree < 498 {
				t.Errorf("%d inodes are free, of 500 without 2", fs.Ffree)
			}
			if by == ByProjectQuota && (int64(fs.Blocks)*fs.Bsize != 32<<20 || fs.Files != 500) {
				t.Errorf("shows %d bytes and %d inodes", int64(fs.Blocks)*fs.Bsize, fs.Files)
			}
			return nil
		})
	})
}

func TestGrow(t *testing.T) {
	kinds(t, func(t *testing.T, by string) {
		s := openStore(t, by)
		mustMake(t, s, "v", 4<<20, 0)
		root := mustRoot(t, s, "v")
		asUser(t, root, func() error { return os.WriteFile("kept", []byte("text"), 0o600) })
		root.Close()
		if err := s.Release("v"); err != nil {
			t.Fatal(err)
		}
		for _, limit := range []struct{ bytes, inodes int64 }{
			{4 << 20, 0}, {5 << 20, 0}, {140 << 20, 0}, {140 << 20, 20_000}, {300 << 20, 40_000},
		} {
			mustMake(t, s, "v", limit.bytes, limit.inodes)
			st := mustState(t, s, "v")
			if st.Bytes != limit.bytes || st.Inodes < limit.inodes || st.UsedBytes > 1<<20 {
				t.Errorf("%+v after growing to %+v", st, limit)
			}
			root, err := s.Root("v")
			if err != nil {
				t.Fatal(err)
			}
			var fs unix.Statfs_t
			if err := unix.Fstatfs(int(root.Fd()), &fs); err != nil {
				t.Fatal(err)
			}
			if avail := int64(fs.Bavail) * fs.Bsize; avail > limit.bytes || avail < limit.bytes-(1<<20) {
				t.Errorf("%d bytes are free after growing to %+v", avail, limit)
			}
			asUser(t, root, func() error {
				if text, err := os.ReadFile("kept"); string(text) != "text" {
					return fmt.Errorf("lost: %q, %w", text, err)
				}
				return nil
			})
			root.Close()
		}
	})
}

// TestTrimFull: a writer that has exceeded the limit while the image grew gets nothing more.
func TestTrimFull(t *testing.T) {
	requireLoop(t)
	s := newPlace(t).open(t, ByImage)
	mustMake(t, s, "v", 16<<20, 0)
	root := mustRoot(t, s, "v")
	asUser(t, root, func() error { return os.WriteFile("large", make([]byte, 10<<20), 0o600) })
	top, _, err := s.mountOnce("v")
	if err != nil {
		t.Fatal(err)
	}
	defer top.Close()
	if err := unix.Syncfs(int(top.Fd())); err != nil {
		t.Fatal(err)
	}
	if err := trim(top, (8<<20)/block); err != nil {
		t.Fatal(err)
	}
	asUser(t, root, func() error {
		n, err := fill("more")
		if n > 64<<10 || !isFull(err) {
			t.Errorf("%d more bytes, then %v", n, err)
		}
		return nil
	})
}

// TestGrowInUse: a box has the volume, and is writing.
func TestGrowInUse(t *testing.T) {
	kinds(t, func(t *testing.T, by string) {
		s := openStore(t, by)
		mustMake(t, s, "v", 4<<20, 0)
		root := mustRoot(t, s, "v")
		asUser(t, root, func() error { return onlyFull(second(fill("first"))) })
		err := s.Make("v", 12<<20, 0)
		if errors.Is(err, errOffline) { // no CAP_SYS_RESOURCE here
			if !errors.Is(err, ErrBusy) {
				t.Error(err)
			}
			stillUsable(t, s, "v", 4<<20)
			root.Close()
			// It can grow when nobody uses it any more.
			mustMake(t, s, "v", 12<<20, 0)
			stillUsable(t, s, "v", 12<<20)
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		asUser(t, root, func() error {
			n, err := fill("second")
			if n < 7<<20 || n > 9<<20 || !isFull(err) {
				t.Errorf("%d more bytes, then %v", n, err)
			}
			return nil
		})
	})
}

// stillUsable checks that a volume has its limit on record, can be opened, and is limited.
func stillUsable(t *testing.T, s *Store, name string, limit int64) {
	t.Helper()
	root, err := s.Root(name)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	st, err := s.Get(name)
	if err != nil || st.Bytes != limit || st.UsedBytes > limit {
		t.Errorf("%+v, %v", st, err)
	}
	asUser(t, root, func() error {
		if n, err := fill("all"); st.UsedBytes+n > limit || st.UsedBytes+n < limit-limit/20 || !isFull(err) {
			t.Errorf("%d more bytes with %+v, then %v", n, st, err)
		}
		return os.Remove("all")
	})
}

// TestGrowKilled: the record has a higher limit than the image, which a box uses. Until the
// image can grow, its limit stays as it was.
func TestGrowKilled(t *testing.T) {
	requireLoop(t)
	p := newPlace(t)
	s := p.open(t, ByImage)
	mustMake(t, s, "v", 4<<20, 0)
	root := mustRoot(t, s, "v")
	box := hold(t, root)
	root.Close()
	r, err := s.load("v")
	if err != nil {
		t.Fatal(err)
	}
	r.Bytes = 8 << 20
	if err := s.writeFile("v"+recordSuffix, r); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = p.open(t, ByImage)
	root = mustRoot(t, s, "v") // as it is, or grown where that is possible
	asUser(t, root, func() error {
		if n, err := fill("x"); n < 3<<20 || n > 8<<20 || !isFull(err) {
			t.Errorf("%d bytes, then %v", n, err)
		}
		return os.Remove("x")
	})
	root.Close()
	size := func() int64 {
		st, err := os.Stat(filepath.Join(p.data, "v.img"))
		if err != nil {
			t.Fatal(err)
		}
		return st.Size()
	}
	before := size()
	for range 3 {
		if err := s.Make("v", 8<<20, 0); err != nil && !errors.Is(err, ErrBusy) {
			t.Error(err) // nothing but that it cannot grow now
		}
		if err := s.Release("v"); err != nil {
			t.Fatal(err)
		}
		mustRoot(t, s, "v").Close()
	}
	if after := size(); after != before {
		t.Errorf("the image grows in vain from %d to %d bytes", before, after)
	}
	if err := s.Release("v"); err != nil {
		t.Fatal(err)
	}
	box()
	mustMake(t, s, "v", 8<<20, 0)
	stillUsable(t, s, "v", 8<<20)
}

func second[A, B any](_ A, b B) B { return b }

func TestShrink(t *testing.T) {
	kinds(t, func(t *testing.T, by string) {
		s := openStore(t, by)
		mustMake(t, s, "v", 16<<20, 2000)
		root := mustRoot(t, s, "v")
		asUser(t, root, func() error { return os.WriteFile("f", make([]byte, 8<<20), 0o600) })
		for _, limit := range [][2]int64{{15 << 20, 2000}, {16 << 20, 1999}, {4 << 20, 0}} {
			err := s.Make("v", limit[0], limit[1])
			if by == ByImage {
				if !errors.Is(err, ErrShrink) {
					t.Errorf("%v: %v, want ErrShrink", limit, err)
				}
			} else if err != nil {
				t.Error(err)
			}
		}
		if by == ByProjectQuota { // 8 MiB in a volume of 4
			asUser(t, root, func() error {
				if n, err := fill("more"); !isFull(err) || n != 0 {
					t.Errorf("%d bytes beyond the new limit: %v", n, err)
				}
				return nil
			})
		} else if st := mustState(t, s, "v"); st.Bytes != 16<<20 {
			t.Errorf("%+v", st)
		}
	})
}

func TestValidation(t *testing.T) {
	for _, name := range []string{"", "-a", "a/b", "..", ".", "A", "a.b", "a\x00", "ä", "a b", string(make([]byte, 65)), "a\n"} {
		if checkName(name) == nil {
			t.Errorf("name %q is accepted", name)
		}
	}
	for _, name := range []string{"a", "0", "a-", "w-0123456789abcdef0123456789abcdef01234567"} {
		if err := checkName(name); err != nil {
			t.Error(err)
		}
	}
	for _, limit := range [][2]int64{{0, 0}, {-1, 0}, {MinBytes - 1, 0}, {MaxBytes + 1, 0}, {MinBytes, -1}, {MinBytes, 1}, {MinBytes, MaxInodes + 1}, {1 << 63 >> 1, 0}} {
		if _, _, err := checkLimits(limit[0], limit[1]); err == nil {
			t.Errorf("limits %v are accepted", limit)
		}
	}
	if b, i, err := checkLimits(MinBytes+1, 0); b != MinBytes+block || i != 1024 || err != nil {
		t.Error(b, i, err)
	}
	if _, i, _ := checkLimits(1<<30, 0); i != 65536 {
		t.Error(i)
	}
}
