package native

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/testutil"
	"github.com/boxd/boxd/langbot/skills"
	"github.com/boxd/boxd/langbot/transfer"
)

// skillStore is a store of skills in a volume.
type skillStore struct {
	*skills.Store
	root  skills.Root
	t     testing.TB
	files *transfer.Set
}

func newSkillStore(t testing.TB, s *storage, size, inodes int64) *skillStore {
	t.Helper()
	if err := s.MakeVolume(t.Context(), engine.Volume{Name: "skills", Bytes: size, Inodes: inodes}); err != nil {
		t.Fatal(err)
	}
	files := transfer.NewSet(t.TempDir(), 20<<20, transfer.NewPool(1<<30))
	t.Cleanup(files.Close)
	return &skillStore{t: t, files: files, Store: skills.New(slog.New(slog.DiscardHandler)), root: skills.Root{
		Namespace: "ns", Path: "/srv/skills",
		Open: func(ctx context.Context, _ bool) (*os.File, error) {
			return s.OpenDirectory(ctx, engine.Directory{Volume: "skills", Path: "/"})
		},
	}}
}

func (s *skillStore) do(action string, data map[string]any) (string, error) {
	raw, err := json.Marshal(data)
	if err != nil {
		s.t.Fatal(err)
	}
	answer, err := s.Do(s.t.Context(), s.root, action, raw, s.files)
	if err != nil {
		return "", err
	}
	raw, err = json.Marshal(answer)
	return string(raw), err
}

func (s *skillStore) must(action string, data map[string]any, want string) {
	s.t.Helper()
	if got, err := s.do(action, data); err != nil || !strings.Contains(got, want) {
		s.t.Errorf("%s: %.300s, %v, want %q", action, got, err, want)
	}
}

func (s *skillStore) full(action string, data map[string]any) {
	s.t.Helper()
	if _, err := s.do(action, data); err == nil || err.Error() != "BoxValidationError: The skill storage of this workspace is full: delete something in it, or ask for more of it" {
		s.t.Errorf("%s: %v, want that the storage is full", action, err)
	}
}

func (s *skillStore) send(p []byte) string {
	s.t.Helper()
	for i := 0; i*transfer.MaxChunk < len(p); i++ {
		raw, _ := json.Marshal(map[string]any{"file_key": "k.zip", "chunk_index": i, "chunk_amount": i + 1,
			"chunk_base64": base64.StdEncoding.EncodeToString(p[i*transfer.MaxChunk : min(len(p), (i+1)*transfer.MaxChunk)])})
		if err := s.files.Chunk(raw); err != nil {
			s.t.Fatal(err)
		}
	}
	return "k.zip"
}

// noiseZip is a skill with this many files of this size, which cannot be compressed.
func noiseZip(t testing.TB, files, size int) []byte {
	t.Helper()
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	noise := rand.NewChaCha8([32]byte{})
	for i := range files + 1 {
		name, p := fmt.Sprintf("dir/%d", i), make([]byte, size)
		_, _ = noise.Read(p)
		if i == 0 {
			name, p = "SKILL.md", []byte("---\nname: big\n---\n")
		}
		f, err := w.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write(p); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestSkillsFull: a full volume is one clear line, and nothing is half done.
func TestSkillsFull(t *testing.T) {
	testutil.Long(t)
	s := startStorage(t, 0)
	store := newSkillStore(t, s, 8*mib, 128)
	if v, _ := s.state("skills"); v.By == engine.ByProjectQuota {
		t.Skip("project quota does not bind a process with CAP_SYS_RESOURCE, as this one may be (quotactl(2)); the daemon has no capability: test/langbot TestSkillQuota")
	}
	skill := map[string]any{"name": "s", "instructions": "one"}
	store.must("box_create_skill", map[string]any{"skill": skill}, `"name":"s"`)
	before, _ := s.state("skills")

	store.full("box_install_skill_zip", map[string]any{"file_key": store.send(noiseZip(t, 10, 1<<20))})
	store.full("box_install_skill_zip", map[string]any{"file_key": store.send(noiseZip(t, 300, 1))}) // inodes
	if after, _ := s.state("skills"); after.UsedInodes != before.UsedInodes || after.UsedBytes > before.UsedBytes+64<<10 {
		t.Errorf("before %+v, after %+v", before, after)
	}
	mb := strings.Repeat("x", mib)
	n := 0
	for ; n < 20; n++ {
		if _, err := store.do("box_write_skill_file", map[string]any{"name": "s", "path": fmt.Sprintf("f%d", n), "content": mb}); err != nil {
			break
		}
	}
	if n < 4 || n > 8 {
		t.Errorf("%d MiB fit into 8", n)
	}
	store.full("box_write_skill_file", map[string]any{"name": "s", "path": "new/dir/f", "content": mb})
	store.full("box_write_skill_file", map[string]any{"name": "s", "path": "f0", "content": mb})
	store.full("box_update_skill", map[string]any{"name": "s", "skill": map[string]any{"instructions": mb[:mib-100]}})
	store.full("box_create_skill", map[string]any{"skill": map[string]any{"name": "t", "instructions": mb[:mib-100]}})
	store.must("box_read_skill_file", map[string]any{"name": "s", "path": "f0"}, `xxxx`)
	store.must("box_get_skill", map[string]any{"name": "s"}, `"instructions":"one"`)
	list, _ := store.do("box_list_skill_files", map[string]any{"name": "s", "include_hidden": true})
	if strings.Contains(list, "new") || strings.Contains(list, ".boxd") || !strings.Contains(list, `"size":1048576`) {
		t.Errorf("there is %s", list)
	}
	store.must("box_delete_skill", map[string]any{"name": "s"}, `"deleted":"s"`)
	store.must("box_create_skill", map[string]any{"skill": skill}, `"name":"s"`)
	if after, _ := s.state("skills"); after.UsedInodes != before.UsedInodes {
		t.Errorf("before %+v, after %+v", before, after)
	}
}

// TestSkillsOfBox: a box works in a skill that the daemon keeps. What either makes is the
// other's to change and to delete, whatever modes the box gave it.
func TestSkillsOfBox(t *testing.T) {
	testutil.Long(t)
	for _, uid := range []int{0, 1000} {
		s := startStorage(t, 0)
		store := newSkillStore(t, s, 8*mib, 128)
		store.must("box_create_skill", map[string]any{"skill": map[string]any{"name": "s"}}, `"name":"s"`)
		store.must("box_write_skill_file", map[string]any{"name": "s", "path": "bin/run", "content": "from outside"}, "12")
		b := createLive(t, s.Service, engine.Spec{User: engine.User{UID: uid, GID: uid},
			Mounts: []engine.Mount{{Source: "/s", Target: "/skill", Volume: "skills"}}})
		wantOutput(t, b, `cd /skill && cat bin/run && echo inside >bin/run && echo y >bin/new && rm -f bin/gone && mkdir -p locked/deep && touch locked/deep/f &&
			chmod 0 locked/deep locked bin/new && mkfifo fifo && ln -s / root && ln -s bin/run ok && ls`, "from outsideSKILL.md\nbin\nfifo\nlocked\nok\nroot\n")
		store.must("box_read_skill_file", map[string]any{"name": "s", "path": "ok"}, `inside\n`)
		store.must("box_write_skill_file", map[string]any{"name": "s", "path": "bin/run", "content": "again"}, "5")
		wantOutput(t, b, "cat /skill/bin/run", "again")
		for _, path := range []string{"root/etc/passwd", "fifo"} {
			if got, err := store.do("box_read_skill_file", map[string]any{"name": "s", "path": path}); err == nil {
				t.Errorf("%s was read: %s", path, got)
			}
		}
		store.must("box_delete_skill", map[string]any{"name": "s"}, `"deleted":"s"`)
		store.must("box_list_skills", map[string]any{}, `"skills":[]`)
		wantOutput(t, b, "ls -A /skill", "") // deleted under it
	}
}

// TestSkillDirectoryOfBox: the directory of a skill is, to the box that may write to it, a
// mount point. It stays the directory that it is, under its name, born when it was: that
// is what tells whose a name is.
func TestSkillDirectoryOfBox(t *testing.T) {
	testutil.Long(t)
	s := startStorage(t, 0)
	store := newSkillStore(t, s, 8*mib, 128)
	store.must("box_create_skill", map[string]any{"skill": map[string]any{"name": "s"}}, `"name":"s"`)
	look := func() (uint64, unix.StatxTimestamp) {
		d, err := s.OpenDirectory(t.Context(), engine.Directory{Volume: "skills", Path: "/s"})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		st, err := linux.Statx(d, unix.STATX_INO|unix.STATX_BTIME)
		if err != nil || st.Mask&unix.STATX_BTIME == 0 {
			t.Fatalf("%#x, %v", st.Mask, err)
		}
		return st.Ino, st.Btime
	}
	ino, born := look()
	for _, uid := range []int{0, 1000} {
		b := createLive(t, s.Service, engine.Spec{User: engine.User{UID: uid, GID: uid},
			Mounts: []engine.Mount{{Source: "/s", Target: "/workspace/skills/s", Volume: "skills"}}})
		wantOutput(t, b, `cd /workspace/skills && for d in "mv s t" "rmdir s" "rm -rf s" "mv -T /tmp s" "ln -sfT /tmp s" "umount s" "mount --bind /tmp s" "mv s/../s s/../../s"; do
			$d >/tmp/out 2>&1 && echo "$d worked"; done; touch -d 1990-01-01 s; chmod 700 s; mkdir s/sub; ls s`, "sub\n")
		if i, at := look(); i != ino || at != born {
			t.Errorf("the directory was %d of %v, is %d of %v", ino, born, i, at)
		}
		wantOutput(t, b, "rmdir /workspace/skills/s/sub", "")
	}
	store.must("box_delete_skill", map[string]any{"name": "s"}, `"deleted":"s"`)
}
