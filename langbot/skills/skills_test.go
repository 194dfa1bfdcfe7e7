package skills

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxd/boxd/internal/testutil"
	"github.com/boxd/boxd/langbot/protocol"
	"github.com/boxd/boxd/langbot/transfer"
)

func TestMain(m *testing.M) { testutil.MainUnprivileged(m) }

// host is a store over a directory of this machine, with its client.
type host struct {
	t     *testing.T
	dir   string // has a directory per namespace
	store *Store
	files *transfer.Set
	ns    string
	open  func(ctx context.Context, ns string, make bool) (*os.File, error)
}

type data = map[string]any

func newHost(t *testing.T) *host {
	t.Helper()
	h := &host{t: t, dir: t.TempDir(), ns: "ws-1", files: transfer.NewSet(t.TempDir(), 64<<20, transfer.NewPool(math.MaxInt64))}
	t.Cleanup(h.files.Close)
	h.store = New(slog.New(slog.DiscardHandler))
	h.open = func(_ context.Context, ns string, make bool) (*os.File, error) {
		if make {
			if err := os.MkdirAll(filepath.Join(h.dir, ns), 0o700); err != nil {
				return nil, err
			}
		}
		return os.Open(filepath.Join(h.dir, ns))
	}
	return h
}

// root is the directory of a namespace.
func (h *host) root(ns string) Root {
	return Root{Namespace: ns, Path: "/srv/skills/" + ns, Open: func(ctx context.Context, make bool) (*os.File, error) {
		return h.open(ctx, ns, make)
	}}
}

// path returns the path of a name in the namespace on this machine.
func (h *host) path(name string) string { return filepath.Join(h.dir, h.ns, name) }

// put writes a file as a box, or an operator, could.
func (h *host) put(name, content string) {
	h.t.Helper()
	if err := os.MkdirAll(filepath.Dir(h.path(name)), 0o755); err != nil {
		h.t.Fatal(err)
	}
	if err := os.WriteFile(h.path(name), []byte(content), 0o644); err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) read(name string) string {
	h.t.Helper()
	p, err := os.ReadFile(h.path(name))
	if err != nil {
		h.t.Fatal(err)
	}
	return string(p)
}

func (h *host) try(action string, d data) (data, error) {
	raw, err := json.Marshal(d)
	if err != nil {
		h.t.Fatal(err)
	}
	answer, err := h.store.Do(h.t.Context(), h.root(h.ns), action, raw, h.files)
	if err != nil {
		return nil, err
	}
	if raw, err = json.Marshal(answer); err != nil {
		h.t.Fatal(err)
	}
	var got data
	if err := json.Unmarshal(raw, &got); err != nil {
		h.t.Fatal(err)
	}
	return got, nil
}

func (h *host) do(action string, d data) data {
	h.t.Helper()
	got, err := h.try(action, d)
	if err != nil {
		h.t.Fatalf("%s %v: %v", action, d, err)
	}
	return got
}

// refused fails the test unless the action is refused with a one-line BoxValidationError that
// contains want, and leaves nothing in the private directory.
func (h *host) refused(action string, d data, want string) {
	h.t.Helper()
	_, err := h.try(action, d)
	var e *protocol.Error
	if !errors.As(err, &e) || e.Class != protocol.BoxValidation || !strings.Contains(e.Text, want) {
		h.t.Errorf("%s %v: got %v, want a BoxValidationError with %q", action, d, err, want)
		return
	}
	if strings.ContainsAny(e.Text, "\n\x00") || strings.Contains(e.Text, h.dir) {
		h.t.Errorf("%s: not one line, or a path of this machine: %q", action, e.Text)
	}
	h.clean()
}

// clean fails the test if something that clients must not see was left. Entries of the register are
// in use.
func (h *host) clean() {
	h.t.Helper()
	_ = filepath.WalkDir(h.dir, func(p string, _ os.DirEntry, _ error) error {
		if filepath.Base(p) == register {
			names, err := os.ReadDir(p)
			if err != nil {
				h.t.Error(err)
			}
			for _, name := range names {
				if dir, err := os.Readlink(filepath.Join(p, name.Name())); err != nil || !isDir(filepath.Join(p, "..", dir)) {
					h.t.Errorf("the name %s is that of %q, %v", name.Name(), dir, err)
				}
			}
			return fs.SkipDir
		}
		if strings.HasPrefix(filepath.Base(p), ".boxd") {
			h.t.Errorf("%s was left", p)
		}
		return nil
	})
}

// left lists the names in the tree, without the register.
func (h *host) left() []string {
	h.t.Helper()
	list, err := os.ReadDir(h.path("."))
	if err != nil && !os.IsNotExist(err) {
		h.t.Fatal(err)
	}
	var names []string
	for _, e := range list {
		if e.Name() != register {
			names = append(names, e.Name())
		}
	}
	return names
}

func isDir(name string) bool {
	st, err := os.Lstat(name)
	return err == nil && st.IsDir()
}

func (h *host) create(name string) data {
	h.t.Helper()
	return h.do("box_create_skill", data{"skill": data{"name": name, "display_name": "Demo", "description": "d", "instructions": "do it"}})["skill"].(data)
}

// list returns the names of the skills in the order of the answer.
func (h *host) list() string {
	h.t.Helper()
	var names []string
	for _, s := range h.do("box_list_skills", data{})["skills"].([]any) {
		names = append(names, s.(data)["name"].(string))
	}
	return strings.Join(names, " ")
}

// The conversation of a client, field by field.
func TestConversation(t *testing.T) {
	h := newHost(t)
	if got := h.list(); got != "" {
		t.Errorf("a namespace without a tree has %s", got)
	}
	if _, err := os.Stat(h.path(".")); err == nil {
		t.Error("to list skills made a tree")
	}
	s := h.create("lbc-demo")
	fields := data{
		"name": "lbc-demo", "display_name": "Demo", "description": "d", "instructions": "do it",
		"package_root": "/srv/skills/ws-1/lbc-demo", "entry_file": "SKILL.md", "python_project": false,
	}
	for key, want := range fields {
		if s[key] != want {
			t.Errorf("%s is %v, want %v", key, s[key], want)
		}
	}
	if at := s["updated_at"].(string); len(at) != len("2026-11-20T08:33:54.999173+00:00") || !strings.HasSuffix(at, "+00:00") || s["created_at"] == nil {
		t.Errorf("times are %v and %v", s["created_at"], at)
	}
	if _, ok := s["source_path"]; ok || len(s) != 9 {
		t.Errorf("the skill has %d fields: %v", len(s), s)
	}
	w := h.do("box_write_skill_file", data{"name": "lbc-demo", "path": "a/b.txt", "content": "hi"})
	if w["path"] != "a/b.txt" || w["bytes_written"] != 2.0 || w["skill"].(data)["name"] != "lbc-demo" {
		t.Errorf("writing: %v", w)
	}
	l := h.do("box_list_skill_files", data{"name": "lbc-demo", "path": "a", "include_hidden": false, "max_entries": 200})
	e := l["entries"].([]any)[0].(data)
	if l["base_path"] != "a" || l["truncated"] != false || e["path"] != "a/b.txt" || e["name"] != "b.txt" || e["is_dir"] != false || e["size"] != 2.0 {
		t.Errorf("listing: %v", l)
	}
	if r := h.do("box_read_skill_file", data{"name": "lbc-demo", "path": "a/b.txt"}); r["content"] != "hi" || r["path"] != "a/b.txt" {
		t.Errorf("reading: %v", r)
	}
	if got := h.list(); got != "lbc-demo" {
		t.Errorf("the list has %q", got)
	}
	if d := h.do("box_delete_skill", data{"name": "lbc-demo"}); d["deleted"] != "lbc-demo" {
		t.Errorf("deleting: %v", d)
	}
	if got := h.list(); got != "" {
		t.Errorf("a deleted skill is listed: %q", got)
	}
	if _, err := os.Stat(h.path("lbc-demo")); err == nil {
		t.Error("a deleted skill is there")
	}
	h.clean()
}

func TestUnknownAction(t *testing.T) {
	h := newHost(t)
	if _, err := h.try("box_list_skill", data{}); err == nil || Has("box_list_skill") || !Has("box_list_skills") {
		t.Errorf("got %v", err)
	}
}

// Errors name what cannot be found; those of list and get have another class.
func TestNotFound(t *testing.T) {
	h := newHost(t)
	if got := h.do("box_get_skill", data{"name": "none"}); got["skill"] != nil {
		t.Errorf("got %v", got)
	}
	for _, action := range []string{"box_update_skill", "box_delete_skill", "box_list_skill_files", "box_read_skill_file", "box_write_skill_file"} {
		h.refused(action, data{"name": "none", "path": "x", "skill": data{}}, `Skill "none" not found`)
		h.refused(action, data{"path": "x", "skill": data{}}, "name")
	}
	var e *protocol.Error
	if _, err := h.try("box_get_skill", data{}); !errors.As(err, &e) || e.Class != protocol.KeyError {
		t.Errorf("without a name: %v", err)
	}
	if _, err := h.try("box_get_skill", data{"name": 1}); !errors.As(err, &e) || e.Class != protocol.ValueError {
		t.Errorf("with a number for a name: %v", err)
	}
	if _, err := os.Stat(h.path(".")); err == nil {
		t.Error("a tree was made")
	}
}

// Namespaces are independent and do not wait for one another.
func TestNamespaces(t *testing.T) {
	h := newHost(t)
	h.create("mine")
	held, err := h.store.locks.LockContext(t.Context(), "ws-1")
	if err != nil {
		t.Fatal(err)
	}
	h.ns = "ws-2"
	if got := h.list(); got != "" {
		t.Errorf("sees %s of another", got)
	}
	h.create("mine")
	h.refused("box_scan_skill_directory", data{"path": "/srv/skills/ws-1/mine"}, "must stay within the Workspace skill root")

	h.ns = "ws-1" // held: its action waits, and gives up with its context
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := h.store.Do(ctx, h.root("ws-1"), "box_list_skills", json.RawMessage(`{}`), h.files)
		done <- err
	}()
	select {
	case err := <-done:
		t.Errorf("an action did not wait for the other of its namespace: %v", err)
	default:
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	held()
	if got := h.list(); got != "mine" {
		t.Errorf("then: %q", got)
	}
	if h.store.locks.Len() != 0 {
		t.Errorf("%d locks are kept of namespaces in which nothing is done", h.store.locks.Len())
	}
}

func TestOpenFails(t *testing.T) {
	h := newHost(t)
	h.open = func(context.Context, string, bool) (*os.File, error) {
		return nil, errors.New("volume w-1 in /var/lib/boxd: I/O error")
	}
	_, err := h.try("box_list_skills", data{})
	if err == nil || strings.Contains(err.Error(), "/var/lib") || !strings.HasPrefix(err.Error(), "ValueError: ") {
		t.Errorf("got %v", err)
	}
	h.open = func(context.Context, string, bool) (*os.File, error) {
		return nil, protocol.Errorf(protocol.BoxError, "no store here")
	}
	h.refused("box_create_skill", data{}, "no store here")
}

// No more skills are read for a client that has left.
func TestListCanceled(t *testing.T) {
	h := newHost(t)
	for i := range 10 {
		h.put(fmt.Sprintf("s%d/SKILL.md", i), "\xff")
	}
	ctx, cancel := context.WithCancel(t.Context())
	var log strings.Builder
	h.store.log = slog.New(slog.NewTextHandler(&ending{&log, cancel}, nil))
	if _, err := h.store.Do(ctx, h.root(h.ns), "box_list_skills", nil, h.files); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if n := strings.Count(log.String(), "passed over"); n != 1 {
		t.Errorf("%d skills were read, want the one after which the client was gone", n)
	}
}

// ending is a writer that ends a context.
type ending struct {
	io.Writer
	end func()
}

func (e *ending) Write(p []byte) (int, error) {
	e.end()
	return e.Writer.Write(p)
}

// If a caller leaves while the directory is being opened, nothing stays open.
func TestLostWhileOpening(t *testing.T) {
	h := newHost(t)
	ctx, cancel := context.WithCancel(context.Background())
	open := h.open
	var given *os.File
	h.open = func(c context.Context, ns string, make bool) (f *os.File, err error) {
		f, err = open(c, ns, true)
		given = f
		cancel() // the launcher has answered already
		return f, err
	}
	func() {
		defer func() {
			if p := recover(); p != nil {
				t.Errorf("panic: %v", p)
			}
		}()
		if _, err := h.store.Do(ctx, h.root(h.ns), "box_list_skills", []byte("{}"), h.files); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
	}()
	if _, err := given.Stat(); err == nil {
		t.Error("the descriptor is open")
	}
}
