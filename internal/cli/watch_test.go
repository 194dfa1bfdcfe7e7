package cli

import (
	"io"
	"net/http"
	"testing"
)

func TestWatch(t *testing.T) {
	d := newFakeDaemon(t, func(r seen, w http.ResponseWriter) {
		if r.what != "GET /v1/sessions/s/files/watch?glob=%2A.png&path=%2Ftmp&recursive=1" {
			t.Error(r.what)
		}
		for _, data := range []string{`{"type":"ready"}`, `{"type":"created","path":"a\u001b.png"}`, `{"type":"missed"}`, `{"type":"removed","path":"d","dir":true}`, `{"type":"gone"}`} {
			io.WriteString(w, "event: x\ndata: "+data+"\n\n: alive\n\n")
		}
	})
	args := []string{"watch", "s:/tmp", "-r", "--glob", "*.png"}
	if status, v := d.call(args...); status != 125 || v.stdout.String() != "created a?.png\nremoved d/\n" || v.stderr.String() != "boxd: some changes could not be reported\nboxd: the directory was removed or moved\n" {
		t.Errorf("status %d, %q, %q", status, v.stdout.String(), v.stderr.String())
	}
	if status, v := d.call(append(args, "--json")...); status != 0 || v.stdout.String() == "" {
		t.Errorf("status %d, %q, %q", status, v.stdout.String(), v.stderr.String())
	}
}
