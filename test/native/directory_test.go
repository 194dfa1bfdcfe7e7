package native

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/testutil"
	"golang.org/x/sys/unix"
)

// asClient runs fn with only the rights of the client's user.
func asClient(t testing.TB, uid int, fn func() error) {
	t.Helper()
	if err := linux.AsOwner(uint32(uid), uint32(uid), fn); err != nil {
		t.Error(err)
	}
}

func makeAt(dir *os.File, name, text string) error {
	f, err := linux.CreateAt(dir, name, 0o640)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

func readAt(dir *os.File, name string) (string, error) {
	return linux.ReadFileAt(dir, name)
}

// TestOpenDirectory: through the descriptor, a directory of any user of the host belongs to the client. What
// the client creates there belongs to the directory's owner. Boxes see the same.
func TestOpenDirectory(t *testing.T) {
	testutil.Long(t)
	const client = 4242
	s := startStorage(t, client)
	s.make("v", 8*mib, 0, "/x")
	hosts := hostDir(t, 1000, 1001)
	own := hostDir(t, client, client)
	for _, d := range []engine.Directory{{Path: hosts + "/a/b", Within: hosts}, {Path: "/c/d", Volume: "v"}} {
		if dir, err := s.OpenDirectory(t.Context(), d); !errors.Is(err, fs.ErrNotExist) || !errors.Is(err, engine.ErrInvalid) {
			t.Errorf("what is missing: %v, %v", dir, err)
		}
	}
	if dir, err := s.OpenDirectory(t.Context(), engine.Directory{Path: hosts + "/none/a", Within: hosts + "/none"}); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("where the root is missing: %v, %v", dir, err)
	}
	for _, c := range []struct {
		name     string
		d        engine.Directory
		m        engine.Mount
		path     string // on the host
		uid, gid uint32
	}{
		{"owner's", engine.Directory{Path: hosts, Within: hosts}, engine.Mount{Source: hosts, Target: "/data"}, hosts, 1000, 1001},
		{"client's", engine.Directory{Path: own, Within: own}, engine.Mount{Source: own, Target: "/data"}, own, client, client},
		{"made", engine.Directory{Path: hosts + "/a/b", Within: hosts, Make: true}, engine.Mount{Source: hosts + "/a/b", Target: "/data"}, hosts + "/a/b", 1000, 1001},
		{"volume", engine.Directory{Path: "/", Volume: "v"}, engine.Mount{Source: "/", Volume: "v", Target: "/data"}, "", 0, 0},
		{"made in a volume", engine.Directory{Path: "/c/d", Volume: "v", Make: true}, engine.Mount{Source: "/c/d", Volume: "v", Target: "/data"}, "", 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, err := s.OpenDirectory(t.Context(), c.d)
			if err != nil {
				t.Fatal(err)
			}
			defer dir.Close()
			killLauncher(t, s.dir) // the descriptor does not need it any more
			asClient(t, client, func() error {
				st, err := linux.Fstat(dir)
				if err != nil || st.Uid != client || st.Gid != client {
					t.Errorf("the client sees the directory of %d:%d, %v", st.Uid, st.Gid, err)
				}
				names, err := dir.Readdirnames(-1)
				if err != nil {
					t.Errorf("listing %q: %v", names, err)
				}
				return errors.Join(makeAt(dir, "file", "hello"), linux.MkdirAt(dir, "sub", 0o700))
			})
			if c.path != "" {
				var st unix.Stat_t
				if err := unix.Lstat(c.path+"/file", &st); err != nil || st.Uid != c.uid || st.Gid != c.gid {
					t.Errorf("on the host it belongs to %d:%d, %v", st.Uid, st.Gid, err)
				}
			}
			b := createLive(t, s.Service, engine.Spec{Mounts: []engine.Mount{c.m}})
			wantOutput(t, b, "cat /data/file; stat -c %u:%g /data /data/file /data/sub; echo box > /data/sub/f", "hello0:0\n0:0\n0:0\n")
			asClient(t, client, func() error {
				text, err := readAt(dir, "sub/f")
				if text != "box\n" {
					t.Errorf("the client reads %q", text)
				}
				return errors.Join(err, unix.Unlinkat(int(dir.Fd()), "file", 0))
			})
			s.remove(b)
			// Nobody else gets in, and nothing leads out.
			asClient(t, client+1, func() error {
				if _, err := readAt(dir, "sub/f"); !errors.Is(err, fs.ErrPermission) {
					t.Errorf("a stranger: %v", err)
				}
				return nil
			})
			asClient(t, client, func() error {
				up, err := linux.OpenAt(dir, "..", unix.O_PATH)
				if err != nil {
					return nil
				}
				defer up.Close()
				here, herr := linux.Fstat(dir)
				there, terr := linux.Fstat(up)
				if here.Ino != there.Ino || here.Dev != there.Dev {
					t.Error(`".." leads out`)
				}
				return errors.Join(herr, terr)
			})
			fs, err := linux.Fstatfs(dir)
			if err != nil || fs.Flags&unix.ST_NOSUID == 0 || fs.Flags&unix.ST_NODEV == 0 {
				t.Errorf("flags of the mount: %#x, %v", fs.Flags, err)
			}
		})
	}
}

// TestOpenDirectoryReadOnly: not even its owner writes through the descriptor.
func TestOpenDirectoryReadOnly(t *testing.T) {
	s := startStorage(t, 4242)
	hosts := hostDir(t, 1000, 1000)
	dir, err := s.OpenDirectory(t.Context(), engine.Directory{Path: hosts, Within: hosts, ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	for name, err := range map[string]error{
		"creating": makeAt(dir, "f", ""), "mkdir": linux.MkdirAt(dir, "d", 0o700), "chmod": linux.ChmodAt(dir, ".", 0o777),
	} {
		if !errors.Is(err, unix.EROFS) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestOpenDirectoryRefusals: what the launcher does not open, or make, for anybody.
func TestOpenDirectoryRefusals(t *testing.T) {
	testutil.Long(t)
	s := startStorage(t, 4242)
	s.make("v", 8*mib, 0, "/x")
	base := hostDir(t, 1000, 1000)
	victim := hostDir(t, 1000, 1000)
	for _, err := range []error{
		os.Mkdir(base+"/root", 0o777), os.Mkdir(base+"/outside", 0o777), os.WriteFile(base+"/root/file", nil, 0o666),
		os.Symlink(victim, base+"/root/absolute"), os.Symlink("../outside", base+"/root/out"), os.Symlink("/proc/self/root", base+"/root/magic"),
		os.Symlink("file", base+"/root/link"),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	b := createLive(t, s.Service, engine.Spec{Mounts: []engine.Mount{{Source: "/", Volume: "v", Target: "/v"}}})
	wantOutput(t, b, "cd /v && mkdir d && ln -s d rel && ln -s /etc etc && ln -s ../.. up && mkfifo fifo && touch file", "")
	within := base + "/root"
	roots, group := hostDir(t, 0, 0), hostDir(t, 1000, 0)
	for _, path := range []string{roots, roots + "/made"} { // to be looked at by whoever may open it
		dir, err := s.OpenDirectory(t.Context(), engine.Directory{Path: path, Within: roots, Make: true, ReadOnly: true})
		if err != nil {
			t.Fatal(err)
		}
		if err := makeAt(dir, "program", "x"); !errors.Is(err, unix.EROFS) {
			t.Errorf("writing to root's %s: %v", path, err)
		}
		dir.Close()
	}
	for _, d := range []engine.Directory{
		{Path: roots, Within: roots},
		{Path: roots + "/made", Within: roots, Make: true},
		{Path: group, Within: group},
		{Path: within + "/absolute", Within: within},
		{Path: within + "/out", Within: within},
		{Path: within + "/magic/etc", Within: within},
		{Path: within + "/../outside", Within: within},
		{Path: base + "/outside", Within: within},
		{Path: within + "/file", Within: within},
		{Path: within + "/nothing", Within: within},
		{Path: within + "/absolute/new", Within: within, Make: true},
		{Path: within + "/out/new", Within: within, Make: true},
		{Path: within + "/file/new", Within: within, Make: true},
		{Path: within + "/link", Within: within, Make: true},
		{Path: "/etc", Within: "/"},
		{Path: "/etc", Within: "/etc"},
		{Path: "/", Within: "/"},
		{Path: "/root", Within: "/"},
		{Path: "/proc/1", Within: "/"},
		{Path: "/run", Within: "/"},
		{Path: s.dir, Within: "/"},
		{Path: "/etc/made/by/boxd", Within: "/", Make: true},
		{Path: "/dev/shm/made", Within: "/dev/shm", Make: true},
		{Path: "/sys/fs/cgroup/made", Within: "/", Make: true},
		{Path: "/nothing", Volume: "v"},
		{Path: "/rel", Volume: "v"},
		{Path: "/etc", Volume: "v"},
		{Path: "/up/etc", Volume: "v"},
		{Path: "/rel/new", Volume: "v", Make: true},
		{Path: "/etc/new", Volume: "v", Make: true},
		{Path: "/up/new", Volume: "v", Make: true},
		{Path: "/fifo", Volume: "v"},
		{Path: "/file", Volume: "v"},
		{Path: "/file/new", Volume: "v", Make: true},
		{Path: "/", Volume: "nothing"},
		{Path: "/x", Volume: "nothing", Make: true},
	} {
		dir, err := s.OpenDirectory(t.Context(), d)
		if err == nil {
			dir.Close()
		}
		if !errors.Is(err, engine.ErrInvalid) {
			t.Errorf("%+v: %v", d, err)
		}
	}
	for _, dir := range []string{victim, base + "/outside"} {
		if list, err := os.ReadDir(dir); err != nil || len(list) > 0 {
			t.Errorf("%s has %v, %v", dir, list, err)
		}
	}
	for _, path := range []string{"/etc/made", "/dev/shm/made", "/sys/fs/cgroup/made", "/etc/new"} {
		if _, err := os.Lstat(path); err == nil {
			t.Errorf("%s was made", path)
		}
	}
}

// TestMakeUnderAttack: the parent directory is the workspace of a box that keeps placing symlinks. Nothing is
// created elsewhere: each request succeeds in the workspace, or is refused.
func TestMakeUnderAttack(t *testing.T) {
	testutil.Long(t)
	s := startStorage(t, 4242)
	base := hostDir(t, 1000, 1000)
	victim := filepath.Join(base, "victim")
	work := filepath.Join(base, "work")
	for _, dir := range []string{victim, work} {
		if err := errors.Join(os.Mkdir(dir, 0o777), os.Chown(dir, 1000, 1000), os.Chmod(dir, 0o777)); err != nil {
			t.Fatal(err)
		}
	}
	b := createLive(t, s.Service, engine.Spec{Mounts: []engine.Mount{{Source: work, Target: engine.WorkspaceTarget}}})
	p := begin(t, b, python(`
import os, sys, time
os.chdir("/workspace")
links = ["../victim", sys.argv[1], "/etc", ".", ".."]
os.mkdir("real")
open("ready", "w").close()
n = 0
while True:
    n += 1
    try:
        os.rename("a", "away%d" % (n % 3)) if n % 2 else os.unlink("a")
    except OSError:
        pass
    try:
        os.symlink(links[n % len(links)], "a")
        os.unlink("a")
        os.rename("real", "a")
        time.sleep(0.0003)
        os.rename("a", "real")
    except OSError:
        pass
`, victim))
	waitUntil(t, "the box is at work", func() bool { _, err := os.Stat(work + "/ready"); return err == nil })
	made, refused := 0, 0
	for i := 0; i < 20000 && (i < 300 || made == 0 || refused == 0); i++ {
		dir, err := s.OpenDirectory(t.Context(), engine.Directory{Path: work + "/a/b/c", Within: base, Make: true})
		if err != nil {
			if !errors.Is(err, engine.ErrInvalid) {
				t.Fatal(err)
			}
			refused++
			continue
		}
		made++
		dir.Close()
	}
	t.Logf("made %d times, refused %d times", made, refused)
	if made == 0 || refused == 0 {
		t.Error("the race was not hit")
	}
	_ = p.Signal(unix.SIGKILL)
	_ = wait(t, p)
	if list, err := os.ReadDir(victim); err != nil || len(list) > 0 {
		t.Errorf("outside there is %v, %v", list, err)
	}
	if _, err := os.Lstat(base + "/b"); err == nil {
		t.Error("something was made above")
	}
}

// TestLimitDirectory: the limit holds, or the error says what is missing.
func TestLimitDirectory(t *testing.T) {
	s := startStorage(t, 4242)
	hosts := hostDir(t, 1000, 1000)
	d := engine.Directory{Path: hosts, Within: hosts}
	err := s.LimitDirectory(t.Context(), d, 4*mib, 100)
	if errors.Is(err, engine.ErrUnenforceable) {
		if !strings.Contains(err.Error(), "quota") {
			t.Errorf("not helpful: %v", err)
		}
		t.Logf("no project quota here: %v", err)
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	b := createLive(t, s.Service, engine.Spec{Mounts: []engine.Mount{{Source: hosts, Target: engine.WorkspaceTarget}}})
	for range 2 {
		wantVolumeFull(t, run(t, b, engine.Command{Args: []string{"sh", "-c", fillBytes, "/workspace"}}), "/workspace 4 MiB")
		wantOutput(t, b, "rm /workspace/file", "")
		wantVolumeFull(t, run(t, b, python(fillFiles, "/workspace")), "/workspace 4 MiB")
		wantOutput(t, b, "cd /workspace && find . -type f -delete", "")
		killLauncher(t, s.dir)
	}
	if err := s.LimitDirectory(t.Context(), d, 0, 0); err != nil {
		t.Fatal(err)
	}
	wantOutput(t, b, "head -c 8M /dev/zero > /workspace/file; stat -c %s /workspace/file", "8388608\n")
}
