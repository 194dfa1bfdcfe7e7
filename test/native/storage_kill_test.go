package native

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/testutil"
	"golang.org/x/sys/unix"
)

// TestStorageLauncherKilled: the launcher is killed between all steps of a volume's life
// and in the middle of each. What was asked for is done once, a volume in use stays the
// same file system, and nothing is left.
func TestStorageLauncherKilled(t *testing.T) {
	testutil.Long(t)
	s := startStorage(t, 4242)
	delays := []time.Duration{0, 2, 5, 10, 17, 30}
	if testing.Short() {
		delays = delays[2:4]
	}
	for _, delay := range delays {
		t.Run(fmt.Sprint(delay*time.Millisecond), func(t *testing.T) { s.liveAndKill(t, delay*time.Millisecond) })
	}
}

// liveAndKill goes through the life of a volume. After delay in each step the launcher is
// killed.
func (s *storage) liveAndKill(t *testing.T, delay time.Duration) {
	step := func(what string, fn func() error) {
		t.Helper()
		// Both: in the middle, as far as the step takes so long, and before the next.
		var wg sync.WaitGroup
		wg.Go(func() {
			time.Sleep(delay)
			killLauncher(t, s.dir)
		})
		if err := fn(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		wg.Wait()
	}
	m := engine.Mount{Source: "/", Volume: "hunted", Target: engine.WorkspaceTarget}
	step("making", func() error {
		return s.MakeVolume(t.Context(), engine.Volume{Name: "hunted", Bytes: 4 * mib})
	})
	var b engine.LiveBox
	step("creating", func() (err error) {
		b, err = s.Create(t.Context(), engine.Spec{ID: "hunted", Mounts: []engine.Mount{m}})
		return err
	})
	wantOutput(t, b, "echo 1 > /workspace/f; exec 9>> /workspace/f; echo 2 >&9", "")
	p := begin(t, b, shell("exec 9>> /workspace/f; while [ ! -e /workspace/go ]; do sleep 0.01; done; echo 3 >&9"))
	step("attaching", func() error {
		return b.Update(t.Context(), engine.Change{Attach: []engine.Mount{{Source: "/", Volume: "hunted", Target: "/again"}}})
	})
	wantOutput(t, b, "cat /again/f", "1\n2\n")
	var dir *os.File
	step("opening", func() (err error) {
		dir, err = s.OpenDirectory(t.Context(), engine.Directory{Volume: "hunted", Path: "/a/b", Make: true})
		return err
	})
	asClient(t, 4242, func() error { return makeAt(dir, "g", "client\n") })
	wantOutput(t, b, "cat /workspace/a/b/g /again/a/b/g", "client\nclient\n")
	dir.Close()
	step("detaching", func() error {
		return b.Update(t.Context(), engine.Change{Detach: []string{"/again"}})
	})
	wantOutput(t, b, "touch /workspace/go", "")
	if r := wait(t, p); r.ExitCode != 0 {
		t.Errorf("the command under way ended with %+v", r)
	}
	step("removing the box", func() error { return b.Remove(t.Context()) })
	step("growing", func() error {
		return s.MakeVolume(t.Context(), engine.Volume{Name: "hunted", Bytes: 8 * mib})
	})
	step("creating again", func() (err error) {
		b, err = s.Create(t.Context(), engine.Spec{ID: "hunted", Mounts: []engine.Mount{m}})
		return err
	})
	wantOutput(t, b, "cat /workspace/f /workspace/a/b/g; stat -f -c %T /workspace > /dev/null", "1\n2\n3\nclient\n")
	wantVolumeFull(t, run(t, b, engine.Command{Args: []string{"sh", "-c", fillBytes, "/workspace"}}), "/workspace 8 MiB")
	step("removing the box", func() error { return b.Remove(t.Context()) })
	step("removing", func() error { return s.RemoveVolume(t.Context(), "hunted") })
	if list, err := s.Volumes(t.Context()); err != nil || len(list) > 0 {
		t.Errorf("volumes in the end: %+v, %v", list, err)
	}
	waitUntil(t, "no loop device is left", func() bool { return len(loops(t, s.data)) == 0 })
}

// TestVolumeGrowsInUse, or is refused to; it stays usable.
func TestVolumeGrowsInUse(t *testing.T) {
	testutil.Long(t)
	s := startStorage(t, 4242)
	m := s.make("grows", 4*mib, 0, "/data")
	b := createLive(t, s.Service, engine.Spec{Mounts: []engine.Mount{m}})
	wantOutput(t, b, "echo x > /data/x", "")
	grow := func() error {
		return s.MakeVolume(t.Context(), engine.Volume{Name: "grows", Bytes: 16 * mib})
	}
	err := grow()
	t.Logf("growing in use: %v", err)
	if err == nil {
		wantOutput(t, b, "head -c 8M /dev/zero > /data/f; stat -c %s /data/f", "8388608\n")
	}
	for range 2 {
		other := createLive(t, s.Service, engine.Spec{Mounts: []engine.Mount{m}})
		wantOutput(t, other, "cat /data/x", "x\n")
		dir, err := s.OpenDirectory(t.Context(), engine.Directory{Volume: "grows", Path: "/"})
		if err != nil {
			t.Fatal(err)
		}
		dir.Close()
		s.remove(other)
		killLauncher(t, s.dir)
	}
	s.remove(b)
	waitUntil(t, "it grows when nobody has it", func() bool { return grow() == nil })
	b = createLive(t, s.Service, engine.Spec{Mounts: []engine.Mount{m}})
	wantOutput(t, b, "cat /data/x; head -c 12M /dev/zero > /data/f; stat -c %s /data/f", "x\n12582912\n")
}

// TestVolumeShared: boxes come, go, attach and detach the same volume, and the client
// looks into it, all at once.
func TestVolumeShared(t *testing.T) {
	testutil.Long(t)
	s := startStorage(t, 4242)
	m := s.make("shared", 16*mib, 0, "/shared")
	const boxes, rounds = 4, 5
	var wg sync.WaitGroup
	for i := range boxes {
		wg.Go(func() {
			for round := range rounds {
				b, err := s.Create(t.Context(), engine.Spec{Mounts: []engine.Mount{m}})
				if err != nil {
					t.Error(err)
					return
				}
				wantOutput(t, b, fmt.Sprintf("echo x >> /shared/%d; wc -l < /shared/%d", i, i), fmt.Sprintln(round+1))
				if err := b.Update(t.Context(), engine.Change{Detach: []string{"/shared"}}); err != nil {
					t.Error(err)
				}
				if err := b.Update(t.Context(), engine.Change{Attach: []engine.Mount{m}}); err != nil {
					t.Error(err)
				}
				if err := b.Remove(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Go(func() {
		for range boxes * rounds {
			dir, err := s.OpenDirectory(t.Context(), engine.Directory{Volume: "shared", Path: "/"})
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := dir.Readdirnames(-1); err != nil {
				t.Error(err)
			}
			dir.Close()
		}
	})
	wg.Wait()
	s.wantNothingMounted()
	if err := s.RemoveVolume(t.Context(), "shared"); err != nil {
		t.Error(err)
	}
}

// TestManyVolumes: more than there are loop devices at first.
func TestManyVolumes(t *testing.T) {
	testutil.Long(t)
	s := startStorage(t, 4242)
	const count = 12
	var wg sync.WaitGroup
	for i := range count {
		wg.Go(func() {
			m := engine.Mount{Source: "/", Target: "/v", Volume: fmt.Sprintf("v%d", i)}
			if err := s.MakeVolume(t.Context(), engine.Volume{Name: m.Volume, Bytes: 2 * mib}); err != nil {
				t.Error(err)
				return
			}
			b, err := s.Create(t.Context(), engine.Spec{Mounts: []engine.Mount{m}})
			if err != nil {
				t.Error(err)
				return
			}
			wantOutput(t, b, fmt.Sprintf("ls /v | grep -v lost; echo %d > /v/f; cat /v/f", i), fmt.Sprintln(i))
		})
	}
	wg.Wait()
	killLauncher(t, s.dir)
	list, err := s.Volumes(t.Context())
	if err != nil || len(list) != count {
		t.Errorf("%d volumes, %v", len(list), err)
	}
}

// TestVolumeWithoutLauncher: without launcher and keeper, a box keeps using its volume. The next start of the service
// finds the same file system, even if the box has ended meanwhile.
func TestVolumeWithoutLauncher(t *testing.T) {
	testutil.Long(t)
	s := startStorage(t, 4242)
	m := s.make("alone", 4*mib, 0, engine.WorkspaceTarget)
	b := createLive(t, s.Service, engine.Spec{ID: "alone", Mounts: []engine.Mount{m}})
	for round := range 2 {
		r, w := io.Pipe()
		c := shell(fmt.Sprintf("read x; echo %d >> /workspace/f", round))
		c.Stdin = r
		p := begin(t, b, c)
		for _, role := range []string{"keeper", "launcher"} {
			killAll(t, role, s.dir)
		}
		if _, err := io.WriteString(w, "go\n"); err != nil {
			t.Fatal(err)
		}
		w.Close()
		if r := wait(t, p); r.ExitCode != 0 {
			t.Errorf("the command under way ended with %+v", r)
		}
		if round == 1 {
			for _, pid := range initPIDs(t, b) {
				n, _ := strconv.Atoi(pid)
				_ = unix.Kill(n, unix.SIGKILL)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if round == 1 {
			waitUntil(t, "its device is free", func() bool { return len(loops(t, s.data)) == 0 })
		}
		s.start()
		if round == 0 {
			b = adoptLive(t, s.Service, "alone")
		}
	}
	b = createLive(t, s.Service, engine.Spec{Mounts: []engine.Mount{m}})
	wantOutput(t, b, "cat /workspace/f", "0\n1\n")
}
