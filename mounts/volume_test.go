package mounts

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/testutil"
)

func TestValidateVolume(t *testing.T) {
	for _, c := range []struct {
		m    spec.Mount
		want string
	}{
		{spec.Mount{Source: "/", Volume: "w-1"}, ""},
		{spec.Mount{Source: "/a/b", Volume: strings.Repeat("v", 64)}, ""},
		{spec.Mount{Source: "/", Volume: strings.Repeat("v", 65)}, "must be 1 to 64 of a-z"},
		{spec.Mount{Source: "/", Volume: "-v"}, "must be 1 to 64 of a-z"},
		{spec.Mount{Source: "/", Volume: "V"}, "must be 1 to 64 of a-z"},
		{spec.Mount{Source: "/", Volume: "a/b"}, "must be 1 to 64 of a-z"},
		{spec.Mount{Source: "/", Volume: ".."}, "must be 1 to 64 of a-z"},
		{spec.Mount{Source: "/", Volume: "v\x00"}, "must be 1 to 64 of a-z"},
		{spec.Mount{Source: "/", Volume: "v", Within: "/"}, "must be empty for a source in a volume"},
		{spec.Mount{Source: "a", Volume: "v"}, "must be an absolute path"},
		{spec.Mount{Source: "/a/", Volume: "v"}, `must be written as "/a"`},
		{spec.Mount{Source: "/a/../b", Volume: "v"}, `must be written as "/b"`},
		{spec.Mount{Source: "/..", Volume: "v"}, `must be written as "/"`},
		{spec.Mount{Source: "", Volume: "v"}, "must not be empty"},
	} {
		c.m.Target = "/t"
		err := c.m.Validate()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: %v, want %q", c.m, err, c.want)
		}
		if err != nil {
			checkMessage(t, err)
		}
	}
}

func TestVolumeJSON(t *testing.T) {
	m := spec.Mount{Source: "/a", Target: "/t", Volume: "v"}
	text, err := json.Marshal(m)
	if want := `{"source":"/a","target":"/t","volume":"v"}`; err != nil || string(text) != want {
		t.Errorf("%s, %v, want %s", text, err, want)
	}
	var again spec.Mount
	if err := json.Unmarshal(text, &again); err != nil || again != m {
		t.Errorf("%+v, %v", again, err)
	}
}

// A mount of a volume must never be taken for one of the host.
func TestOpenRefusesVolumes(t *testing.T) {
	if s, err := Open(spec.Mount{Source: "/usr", Target: "/t", Volume: "v"}, nil); err == nil || s != nil {
		t.Errorf("%v, %v", s, err)
	}
}

func rootOf(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := linux.Openat2(nil, path, unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func TestOpenIn(t *testing.T) {
	base := t.TempDir()
	at := func(name string) string { return filepath.Join(base, name) }
	for _, err := range []error{
		os.MkdirAll(at("root/dir/sub"), 0o755), os.WriteFile(at("root/file"), nil, 0o644), os.WriteFile(at("outside"), nil, 0o644),
		os.Symlink("dir", at("root/link")), os.Symlink("../outside", at("root/out")), os.Symlink("/etc", at("root/etc")),
		os.Symlink("..", at("root/dir/up")), unix.Mkfifo(at("root/fifo"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	root := rootOf(t, at("root"))
	for source, want := range map[string]string{
		"/":              "",
		"/dir/sub":       "",
		"/file":          "",
		"/link":          "is a symlink",
		"/link/sub":      "passes a symlink",
		"/dir/up/file":   "passes a symlink",
		"/out":           "is a symlink",
		"/etc":           "is a symlink",
		"/etc/passwd":    "passes a symlink",
		"/fifo":          "is a FIFO",
		"/nothing":       "does not exist",
		"/file/x":        "not a directory",
		"/../outside":    "must be written as",
		"/dir/../../etc": "must be written as",
	} {
		s, err := OpenIn(root, spec.Mount{Source: source, Target: "/t", Volume: "v"})
		if want == "" {
			if err != nil {
				t.Errorf("%s: %v", source, err)
				continue
			}
			if st := statOf(t, at("root"+source)); fileOf(t, s) != st.Ino || s.Path != "v:"+source {
				t.Errorf("%s: another file, %q", source, s.Path)
			}
			s.Close()
			continue
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", source, err, want)
		}
	}
	if _, err := OpenIn(root, spec.Mount{Source: "/dir", Target: "/t"}); err == nil {
		t.Error("without a volume: no error")
	}
}

func fileOf(t *testing.T, s *Source) uint64 {
	t.Helper()
	st, err := linux.Fstat(s.File)
	if err != nil {
		t.Fatal(err)
	}
	return st.Ino
}

// A directory that was mounted into a volume must not be returned.
func TestOpenInStaysOnTheMount(t *testing.T) {
	testutil.RequireRoot(t)
	base := t.TempDir()
	if err := os.MkdirAll(filepath.Join(base, "in/side"), 0o755); err != nil {
		t.Fatal(err)
	}
	inPrivateNamespace(t, func() error {
		if err := unix.Mount("tmpfs", filepath.Join(base, "in"), "tmpfs", 0, ""); err != nil {
			return err
		}
		root := rootOf(t, base)
		if s, err := OpenIn(root, spec.Mount{Source: "/in", Target: "/t", Volume: "v"}); err == nil {
			s.Close()
			t.Error("a mount in a volume was opened")
		}
		return nil
	})
}
