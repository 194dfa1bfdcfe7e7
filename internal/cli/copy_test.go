package cli

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxd/boxd/api/apitypes"
)

func TestParsePlace(t *testing.T) {
	for s, want := range map[string]place{
		"s:/a": {"s", "/a"}, "s:a": {"s", "a"}, "s:": {"s", ""}, "s:../x": {"s", "../x"}, "s:a:b": {"s", "a:b"},
		"./a:b": {"", "./a:b"}, "/a:b": {"", "/a:b"}, ":a": {"", ":a"}, "-": {"", "-"}, "a": {"", "a"},
	} {
		if got := parsePlace(s); got != want {
			t.Errorf("%q: %+v, want %+v", s, got, want)
		}
	}
}

func TestUpload(t *testing.T) {
	dir := t.TempDir()
	tree := filepath.Join(dir, "tree")
	for name, content := range map[string]string{"a": "A", "sub/b": "BB"} {
		path := filepath.Join(tree, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(tree, "link")); err != nil {
		t.Fatal(err)
	}
	d := newFakeDaemon(t, func(r seen, w http.ResponseWriter) {
		switch {
		case r.what == "GET /v1/sessions/s":
			send(w, apitypes.Session{ID: "s", WorkspaceTarget: "/workspace"})
		case strings.HasPrefix(r.what, "GET /v1/sessions/s/files/stat?path=%2Fworkspace") && !strings.Contains(r.what, "new"):
			send(w, apitypes.FileInfo{Type: "dir"})
		case strings.HasPrefix(r.what, "GET"):
			refuse(w, 404, "file_not_found", "no")
		default:
			send(w, apitypes.FileInfo{Size: int64(len(r.body))})
		}
	})
	status, v := d.call("cp", tree, "s:", "--json")
	if status != 0 || v.stdout.String() != `{"files":2,"directories":2,"bytes":3,"skipped":1}`+"\n" || !strings.Contains(v.stderr.String(), "link is a symlink, left out") {
		t.Errorf("status %d, %q, %q", status, v.stdout.String(), v.stderr.String())
	}
	d.wantRequests(
		"GET /v1/sessions/s",
		"GET /v1/sessions/s/files/stat?path=%2Fworkspace",
		`POST /v1/sessions/s/files/mkdir {"path":"/workspace/tree","parents":true}`,
		"PUT /v1/sessions/s/files/content?mode=0640&path=%2Fworkspace%2Ftree%2Fa A",
		`POST /v1/sessions/s/files/mkdir {"path":"/workspace/tree/sub","parents":true}`,
		"PUT /v1/sessions/s/files/content?mode=0640&path=%2Fworkspace%2Ftree%2Fsub%2Fb BB",
	)
	v = newInvocation(t)
	v.Stdin = strings.NewReader("piped")
	d.requests = nil
	if status := d.callWith(v, "cp", "-", "s:/tmp/x"); status != 0 {
		t.Errorf("status %d, %q", status, v.stderr.String())
	}
	d.wantRequests("PUT /v1/sessions/s/files/content?path=%2Ftmp%2Fx piped")
}

// hostileTree answers as a daemon would whose session has names made to escape.
func hostileTree(names ...apitypes.FileInfo) func(seen, http.ResponseWriter) {
	return func(r seen, w http.ResponseWriter) {
		switch {
		case r.what == "GET /v1/sessions/s":
			send(w, apitypes.Session{ID: "s"}) // of a daemon that does not tell
		case strings.Contains(r.what, "/files/stat"):
			send(w, apitypes.FileInfo{Name: "d", Type: "dir"})
		case strings.Contains(r.what, "/files/content"):
			w.Write([]byte("content"))
		default:
			send(w, apitypes.FileList{Files: names})
		}
	}
}

func TestDownload(t *testing.T) {
	d := newFakeDaemon(t, func(r seen, w http.ResponseWriter) {
		switch r.what {
		case "GET /v1/sessions/s":
			send(w, apitypes.Session{ID: "s", WorkspaceTarget: "/data"})
		case "GET /v1/sessions/s/files/stat?path=%2Fdata%2Fd":
			send(w, apitypes.FileInfo{Name: "d", Type: "dir"})
		case "GET /v1/sessions/s/files?path=%2Fdata%2Fd":
			send(w, apitypes.FileList{Files: []apitypes.FileInfo{{Name: "f", Type: "file", Mode: "0750"}, {Name: "l", Type: "symlink"}, {Name: "p", Type: "fifo"}}})
		case "GET /v1/sessions/s/files/content?path=%2Fdata%2Fd%2Ff":
			w.Write([]byte("content"))
		default:
			refuse(w, 404, "file_not_found", r.what)
		}
	})
	dir := t.TempDir()
	status, v := d.call("cp", "s:d", dir)
	text, err := os.ReadFile(filepath.Join(dir, "d", "f"))
	if status != 0 || string(text) != "content" || err != nil || strings.Count(v.stderr.String(), "left out") != 2 {
		t.Errorf("status %d, %q, %v, %q", status, text, err, v.stderr.String())
	}
	if info, err := os.Stat(filepath.Join(dir, "d", "f")); err != nil || info.Mode().Perm() != 0o750 {
		t.Errorf("%v, %v", info, err)
	}
	if entries, _ := os.ReadDir(filepath.Join(dir, "d")); len(entries) != 1 {
		t.Errorf("%v", entries)
	}
}

func TestDownloadStaysInside(t *testing.T) {
	outside := t.TempDir()
	for _, name := range []string{"..", ".", "", "a/b", "../x", "/etc/x", "a\x00b"} {
		d := newFakeDaemon(t, hostileTree(apitypes.FileInfo{Name: name, Type: "file", Mode: "0644"}))
		if status, v := d.call("cp", "s:d", t.TempDir()); status != 125 || !strings.Contains(v.stderr.String(), "impossible name") {
			t.Errorf("%q: status %d, %q", name, status, v.stderr.String())
		}
	}
	// A symlink that is in the way already is not followed out.
	dir := t.TempDir()
	if err := os.Symlink(outside, filepath.Join(dir, "d")); err != nil {
		t.Fatal(err)
	}
	d := newFakeDaemon(t, hostileTree(apitypes.FileInfo{Name: "f", Type: "file", Mode: "0644"}))
	if status, _ := d.call("cp", "s:d", dir); status != 125 {
		t.Errorf("symlink in the way: status %d", status)
	}
	if entries, _ := os.ReadDir(outside); len(entries) != 0 {
		t.Errorf("outside: %v", entries)
	}
}
