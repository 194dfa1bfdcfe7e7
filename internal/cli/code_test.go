package cli

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxd/boxd/api/apitypes"
)

func TestCode(t *testing.T) {
	d := newFakeDaemon(t, func(_ seen, w http.ResponseWriter) {
		stream(w, apitypes.ExecEvent{Stream: "stdout", Data: "out"}, apitypes.ExecEvent{Result: &apitypes.ExecResult{ExitCode: number(7), Status: 7, Verdict: "exited"}})
	})
	dir := t.TempDir()
	job, data := filepath.Join(dir, "job.py"), filepath.Join(dir, "data.bin")
	if err := os.WriteFile(job, []byte("print(1)\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(data, []byte{0xff, 0}, 0o644); err != nil {
		t.Fatal(err)
	}
	status, v := d.call("code", "s", job)
	if status != 7 || v.stdout.String() != "out" || v.stderr.String() != "" {
		t.Errorf("status %d, stdout %q, stderr %q", status, v.stdout.String(), v.stderr.String())
	}
	d.call("code", "s", job, "--with", data, "--language", "python", "-e", "K=v", "-w", "/tmp", "--timeout", "2", "--", "-x", "y")
	v = newInvocation(t)
	v.Stdin = strings.NewReader("typed")
	d.callWith(v, "code", "s", job, "-i")
	v = newInvocation(t)
	v.Stdin = strings.NewReader("print(2)")
	d.callWith(v, "code", "s", "-", "--language", "python")
	d.wantRequests(`POST /v1/sessions/s/code {"code":"print(1)\n","file":"job.py"}`,
		`POST /v1/sessions/s/code {"language":"python","code":"print(1)\n","file":"job.py","files":[{"path":"data.bin","content_base64":"/wA="}],"args":["-x","y"],"env":{"K":"v"},"cwd":"/tmp","timeout":2}`,
		`POST /v1/sessions/s/code {"code":"print(1)\n","file":"job.py","stdin_base64":"dHlwZWQ="}`,
		`POST /v1/sessions/s/code {"language":"python","code":"print(2)"}`)
}

// What cannot be sent is refused before the daemon is asked, by name.
func TestCodeRefusals(t *testing.T) {
	d := newFakeDaemon(t, func(_ seen, w http.ResponseWriter) {
		refuse(w, 413, apitypes.CodeBodyTooLarge, "the body must have at most 1 MiB")
	})
	dir := t.TempDir()
	write := func(name, content string) string {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		return name
	}
	small, raw, large := write("a.py", "x"), write("raw.py", "\xff"), write("large", strings.Repeat("x", maxCode))
	for _, c := range []struct {
		args string
		want string
		asks int
	}{
		{"code s " + small, "are longer than this daemon accepts: copy files with boxd cp", 1},
		{"code s " + small + " --with " + large, "are longer than 8 MiB", 0},
		{"code s " + small + " --with " + dir, "is a directory", 0},
		{"code s " + dir + "/none.py", "no such file", 0},
		{"code s " + raw, "UTF-8", 0},
		{"code s -", "--language", 0},
		{"code s - -i --language python", "--interactive", 0},
		{"code s", "FILE is missing: boxd code SESSION FILE", 0},
		{"code a/b " + small, "SESSION", 0},
	} {
		d.requests = nil
		if status, v := d.call(strings.Fields(c.args)...); status != 125 || !strings.Contains(v.stderr.String(), c.want) || len(d.requests) != c.asks {
			t.Errorf("%s: status %d, %q, %d requests, want %q", c.args, status, v.stderr.String(), len(d.requests), c.want)
		}
	}
}
