package e2e

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/boxd/boxd/internal/testutil"
)

// A server in a box is seen through the API and through boxd forward, and not by another tenant.
func TestPreviewsAndForwarding(t *testing.T) {
	testutil.RequireProgram(t, "python3")
	d := startDaemon(t)
	if r := d.run("start", "lab", "--id", "web", "--ready-port", "8000", "--wait", "--", "sh", "-c", "echo hello > page; exec python3 -m http.server 8000 --bind 127.0.0.1"); r.status != 0 {
		t.Fatal(r)
	}
	api := d.apiClient()
	if status, body := d.ask(api, "GET", "/v1/sessions/lab/ports/8000/page", ""); status != 200 || string(body) != "hello\n" {
		t.Errorf("preview: %d %q", status, body)
	}
	req, _ := http.NewRequestWithContext(t.Context(), "GET", "http://boxd/v1/sessions/lab/ports/8000/page", nil)
	req.Header.Set("X-Boxd-Tenant", "other")
	if resp, err := api.Do(req); err != nil || resp.StatusCode != 404 {
		t.Errorf("another tenant: %+v, %v", resp, err)
	} else {
		resp.Body.Close()
	}

	cmd := exec.CommandContext(t.Context(), d.boxd, "forward", "lab", "0:8000", "127.0.0.1:0:8000", "0:1")
	cmd.Env = d.env
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	stderr := &strings.Builder{}
	cmd.Stderr = stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for _, want := range []string{"hello\n", "hello\n", ""} {
		if !lines.Scan() {
			t.Fatalf("boxd forward: %v, %s", cmd.Wait(), stderr)
		}
		address, _, _ := strings.Cut(lines.Text(), " leads to port ")
		resp, err := http.Get("http://" + address + "/page")
		if want == "" {
			if err == nil {
				resp.Body.Close()
				t.Error("an answer from a port on which nothing listens")
			}
			continue
		}
		if err != nil {
			t.Error(err)
			continue
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if string(body) != want || err != nil {
			t.Errorf("%s: %q, %v", address, body, err)
		}
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if cmd.Wait(); cmd.ProcessState.ExitCode() != 130 || !strings.Contains(stderr.String(), "Nothing listens on port 1") {
		t.Errorf("status %d, %s", cmd.ProcessState.ExitCode(), stderr)
	}

	d.says(125, "", "forward", "none", "0:1")
	d.says(125, "", "forward", "lab", ":8000:8000")

	// A forward survives the daemon, and ends with its session.
	cmd = exec.CommandContext(t.Context(), d.boxd, "forward", "lab", ":8000", "--json")
	cmd.Env, stderr = d.env, &strings.Builder{}
	if cmd.Stderr = stderr; err == nil {
		out, err = cmd.StdoutPipe()
	}
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	var line struct {
		Session, Address string
		Port             int
	}
	if err := json.NewDecoder(out).Decode(&line); err != nil || line.Session != "lab" || line.Port != 8000 {
		t.Fatalf("%+v, %v", line, err)
	}
	page := func() error {
		resp, err := http.Get("http://" + line.Address + "/page")
		if err == nil {
			resp.Body.Close()
		}
		return err
	}
	if err := page(); err != nil {
		t.Error(err)
	}
	http.DefaultClient.CloseIdleConnections()
	d.kill()
	if page() == nil {
		t.Error("an answer without a daemon")
	}
	d.start()
	if err := page(); err != nil {
		t.Errorf("after a restart: %v", err)
	}
	http.DefaultClient.CloseIdleConnections()
	d.says(125, "", "forward", "lab", strings.TrimPrefix(line.Address, "127.0.0.1:")+":8000") // in use

	d.says(0, "", "sessions", "rm", "lab")
	// Without a connection that would find out.
	if cmd.Wait(); cmd.ProcessState.ExitCode() != 125 || !strings.Contains(stderr.String(), "boxd: session \"lab\" has ended: it was removed") {
		t.Errorf("status %d, %s", cmd.ProcessState.ExitCode(), stderr)
	}
	if page() == nil {
		t.Error("an answer of a removed session")
	}
	if status, _ := d.ask(api, "GET", "/v1/sessions/lab/ports/8000/page", ""); status != 404 {
		t.Errorf("a removed session: %d", status)
	}
}
