package e2e

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/internal/testutil"
)

// What runs in a paused session stands still, across the death of the daemon and its launcher, and goes on; use is
// refused with one line that says what to do, or resumes the session if it says so.
func TestPause(t *testing.T) {
	testutil.RequireRoot(t)
	d := startDaemon(t)
	c := d.apiClient()
	session := func() (s apitypes.Session) {
		t.Helper()
		status, answer := d.ask(c, "GET", "/v1/sessions/s", "")
		if err := json.Unmarshal(answer, &s); err != nil || status != 200 {
			t.Fatalf("%d %s, %v", status, answer, err)
		}
		return s
	}
	d.says(0, "", "start", "s", "--id", "p", "--", "sh", "-c", "while read x; do echo got $x; done")
	// A command whose timeout would be over in the pause.
	slow := make(chan []byte, 1)
	go func() {
		_, answer := d.ask(c, "POST", "/v1/sessions/s/exec", `{"shell":"echo begun >begun; sleep 0.5; echo ended","timeout":1.5}`)
		slow <- answer
	}()
	for deadline := time.Now().Add(patience); session().Execs == 0 || !strings.Contains(d.run("exec", "s", "--", "cat", "begun").stdout, "begun"); {
		if time.Now().After(deadline) {
			t.Fatal("the command does not begin")
		}
	}
	if _, err := os.Stat("/sys/fs/cgroup/memory"); err == nil { // cgroup v1 cannot give memory to the host
		if r := d.run("pause", "--reclaim", "s"); r.status == 0 || r.stdout != "" || strings.Count(r.stderr, "\n") != 1 || !strings.Contains(r.stderr, "cgroup v1") {
			t.Errorf("pause --reclaim: %+v", r)
		}
		if s := session(); s.PausedAt != nil {
			t.Errorf("a refused pause: %+v", s)
		}
	}
	d.says(0, "", "pause", "s")
	d.says(0, "", "pause", "s")
	paused := session()
	if paused.PausedAt == nil || paused.State != "running" || paused.ExpiresAt != nil {
		t.Errorf("%+v", paused)
	}
	if out := d.run("sessions", "ls").stdout; !strings.Contains(out, "paused") {
		t.Errorf("sessions ls: %s", out)
	}
	status, answer := d.ask(c, "POST", "/v1/sessions/s/exec", `{"argv":["true"]}`)
	var p apitypes.Problem
	if err := json.Unmarshal(answer, &p); err != nil || status != 409 || p.Code != apitypes.CodePaused || !strings.Contains(p.Detail, `boxd resume "s"`) {
		t.Errorf("%d %s", status, answer)
	}
	time.Sleep(1600 * time.Millisecond) // the timeout of the command, in which nothing can be awaited
	select {
	case got := <-slow:
		t.Errorf("a command of a paused session has ended: %s", got)
	default:
	}
	d.says(0, "", "resume", "s")
	if got := <-slow; !bytes.Contains(got, []byte(`"stdout":"ended\n"`)) || !bytes.Contains(got, []byte(`"verdict":"exited"`)) {
		t.Errorf("the command: %s", got)
	}
	d.says(0, "", "pause", "s")
	at := session().PausedAt
	d.kill()
	d.start()
	if got := session(); got.PausedAt == nil || !got.PausedAt.Equal(*at) || got.Box != paused.Box {
		t.Errorf("after the daemon was killed: %+v", got)
	}
	d.says(0, "", "resume", "s")
	d.stdin = strings.NewReader("it\n")
	d.says(0, "got it\n", "attach", "s", "p")
	// With auto_resume, use resumes it.
	if status, answer := d.ask(c, "PATCH", "/v1/sessions/s", `{"auto_resume":true}`); status != 200 {
		t.Errorf("%d %s", status, answer)
	}
	d.says(0, "", "pause", "s")
	d.says(0, "again\n", "exec", "s", "--", "echo", "again")
	if got := session(); got.PausedAt != nil {
		t.Errorf("use has not resumed it: %+v", got)
	}
	d.says(0, "", "pause", "s")
	d.says(0, "", "sessions", "rm", "s")
}
