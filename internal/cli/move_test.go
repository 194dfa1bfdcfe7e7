package cli

import (
	"net/http"
	"strings"
	"testing"

	"github.com/boxd/boxd/api/apitypes"
)

func TestMove(t *testing.T) {
	var asked string
	d := newFakeDaemon(t, func(r seen, w http.ResponseWriter) {
		switch {
		case r.what == "GET /v1/sessions/s":
			send(w, apitypes.Session{ID: "s", WorkspaceTarget: "/w"})
		case r.what == "GET /v1/sessions/s/files/stat?path=%2Fw%2Fdir":
			send(w, apitypes.FileInfo{Name: "dir", Type: "dir"})
		case strings.HasPrefix(r.what, "GET "):
			refuse(w, 404, apitypes.CodeNoFile, "no such file")
		default:
			asked = r.what + " " + r.body
			w.WriteHeader(http.StatusNoContent)
		}
	})
	for args, want := range map[string]string{
		"s:a b":          `{"path":"/w/a","to":"/w/b"}`,
		"s:a s:/tmp/b":   `{"path":"/w/a","to":"/tmp/b"}`,
		"s:x/a dir":      `{"path":"/w/x/a","to":"/w/dir/a"}`,
		"-f s:/a s:dir/": `{"path":"/a","to":"/w/dir/a","replace":true}`,
	} {
		if status, v := d.call(append([]string{"mv"}, strings.Fields(args)...)...); status != 0 || asked != "POST /v1/sessions/s/files/rename "+want {
			t.Errorf("%s: status %d, %q, %s", args, status, v.stderr.String(), asked)
		}
	}
	taken := newFakeDaemon(t, func(r seen, w http.ResponseWriter) {
		switch {
		case r.what == "GET /v1/sessions/s":
			send(w, apitypes.Session{ID: "s", WorkspaceTarget: "/w"})
		case strings.HasPrefix(r.what, "GET "):
			send(w, apitypes.FileInfo{Name: "b", Type: "file"})
		default:
			refuse(w, 409, apitypes.CodeFileExists, "file exists")
		}
	})
	if status, v := taken.call("mv", "s:a", "b"); status != 125 || v.stderr.String() != "boxd: session s: \"/w/b\" exists: --force replaces a file\n" {
		t.Errorf("status %d, %q", status, v.stderr.String())
	}
	for args, want := range map[string]string{"a b": "must name a session", "s:a t:b": "must be in the session", "s:a": "DESTINATION is missing"} {
		if status, v := d.call(append([]string{"mv"}, strings.Fields(args)...)...); status != 125 || !strings.Contains(v.stderr.String(), want) {
			t.Errorf("%s: status %d, %q", args, status, v.stderr.String())
		}
	}
}
