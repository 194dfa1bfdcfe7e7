package cli

import (
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxd/boxd/api/apitypes"
)

// TestExecOutputs: what a command has made lands below a directory of the host, and nowhere else.
func TestExecOutputs(t *testing.T) {
	exit := 3
	answer := func(outputs ...apitypes.OutputFile) *fakeDaemon {
		return newFakeDaemon(t, func(r seen, w http.ResponseWriter) {
			switch {
			case strings.HasPrefix(r.what, "GET /v1/sessions/s/files/content?path=%2Fw%2Fbig"):
				w.Write([]byte("large"))
			case r.what != "POST /v1/sessions/s/exec" || !strings.Contains(r.body, `"outputs":["*.png","out"]`):
				t.Errorf("%+v", r)
			default:
				send(w, apitypes.ExecResult{Verdict: "exited", ExitCode: &exit, Status: 3, Outputs: outputs, OutputsTruncated: len(outputs) > 2})
			}
		})
	}
	call := func(d *fakeDaemon, dir string) (int, *invocation) {
		return d.call("exec", "s", "--json", "--workdir", "/w", "--outputs", "*.png", "--outputs", "out", "--outputs-to", dir, "--", "plot")
	}
	dir := t.TempDir()
	d := answer(apitypes.OutputFile{Path: "a.png", Mode: "0640", Size: 1, Content: "A"}, apitypes.OutputFile{Path: "out/b\ufffd", RawPath: []byte("out/b\xff"), Mode: "4755", ContentBase64: []byte("\xff")},
		apitypes.OutputFile{Path: "big", Mode: "0644", Size: 5, Omitted: true})
	if status, v := call(d, dir); status != 3 || planted(t, dir) != "a.png 640 A, big 644 large, out/ 755, out/b\xff 755 \xff" || !strings.Contains(v.stderr.String(), "more outputs than the 3") {
		t.Errorf("status %d, %q, %q", status, v.stderr.String(), planted(t, dir))
	}
	outside := t.TempDir()
	for _, name := range []string{"../x", "/etc/x", outside + "/x", "link/x", "out/../../x"} {
		dir := t.TempDir()
		if err := os.Symlink(outside, filepath.Join(dir, "link")); err != nil {
			t.Fatal(err)
		}
		if status, v := call(answer(apitypes.OutputFile{Path: name, Mode: "0644", Content: "x"}), dir); status != 3 || !strings.Contains(v.stderr.String(), "output ") || !strings.Contains(v.stdout.String(), `"exit_code":3`) {
			t.Errorf("%s: status %d, %q", name, status, v.stderr.String())
		}
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) != 0 {
		t.Errorf("%v, %v", left, err)
	}
	if _, err := os.Stat("/etc/x"); err == nil || !os.IsNotExist(err) && err != fs.ErrNotExist {
		t.Error(err)
	}
	if status, v := call(answer(apitypes.OutputFile{Path: "x"}), filepath.Join(dir, "none")); status != 125 || !strings.Contains(v.stdout.String(), "--outputs-to") || !strings.Contains(v.stdout.String(), "make it first") {
		t.Errorf("no directory: status %d, %q", status, v.stderr.String())
	}
	// A script that goes by the status notices.
	exit = 0
	d = newFakeDaemon(t, func(_ seen, w http.ResponseWriter) {
		send(w, apitypes.ExecResult{Verdict: "exited", ExitCode: &exit, Outputs: []apitypes.OutputFile{{Path: "../x"}}})
	})
	if status, v := call(d, dir); status != 125 || !strings.Contains(v.stderr.String(), "not all outputs were saved") || !strings.Contains(v.stdout.String(), `"exit_code":0`) {
		t.Errorf("status %d, %q, %q", status, v.stderr.String(), v.stdout.String())
	}
}

// Code has outputs as well.
func TestCodeOutputs(t *testing.T) {
	dir := t.TempDir()
	plant(t, dir, "plot.py 644 x", "out/ 755")
	d := newFakeDaemon(t, func(r seen, w http.ResponseWriter) {
		if !strings.Contains(r.body, `"outputs":["*.png"]`) {
			t.Errorf("%+v", r)
		}
		stream(w, apitypes.ExecEvent{Result: &apitypes.ExecResult{Verdict: "exited", ExitCode: number(0), Outputs: []apitypes.OutputFile{{Path: "a.png", Mode: "0644", Content: "A"}}}})
	})
	args := []string{"code", "s", dir + "/plot.py", "--outputs", "*.png", "--outputs-to"}
	if status, v := d.call(append(args, dir+"/out")...); status != 0 || planted(t, dir+"/out") != "a.png 644 A" {
		t.Errorf("status %d, %q, %s", status, v.stderr.String(), planted(t, dir+"/out"))
	}
	d = newFakeDaemon(t, func(r seen, _ http.ResponseWriter) { t.Errorf("%+v", r) })
	if status, v := d.call(append(args, dir+"/none")...); status != 125 || !strings.Contains(v.stderr.String(), "must be a directory: make it first") {
		t.Errorf("status %d, %q", status, v.stderr.String())
	}
}
