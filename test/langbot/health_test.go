package langbot

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/internal/testutil"
	"github.com/boxd/boxd/test/daemon"
	"golang.org/x/sys/unix"
)

// promise is within which time health tells the truth.
const promise = 10 * time.Second

// wantHealth waits for what all doors say to be as wanted, no longer than promised: well, or
// ill for a reason with all of words.
func (w *world) wantHealth(well bool, words ...string) {
	w.t.Helper()
	began := time.Now()
	var wrong string
	for time.Since(began) < promise {
		if wrong = w.healthIsNot(well, words); wrong == "" {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	w.t.Errorf("after %v: %s", time.Since(began), wrong)
}

// healthIsNot returns how the health differs from the expected one, or "".
func (w *world) healthIsNot(well bool, words []string) string {
	says := map[string]string{}
	s, err := w.api.Status(w.t.Context())
	if err != nil || s.Available != well || s.Engine.OK != well {
		return fmt.Sprintf("status: %+v, %v", s, err)
	}
	says["status"] = s.Reason
	boxd, _ := testutil.BuildBinaries(w.t)
	out, err := exec.Command(boxd, "status", "--socket", w.Socket()).CombinedOutput()
	if (err == nil) != well {
		return fmt.Sprintf("boxd status: %v: %s", err, out)
	}
	says["boxd status"] = string(out)
	var r struct {
		Ready bool   `json:"ready"`
		Error string `json:"error"`
	}
	if code := w.get("/readyz", &r); (code == http.StatusOK) != well || r.Ready != well {
		return fmt.Sprintf("LangBot's readiness: %d, %+v", code, r)
	}
	says["LangBot's readiness"] = r.Error
	for who, text := range says {
		for _, word := range words {
			if !strings.Contains(text, word) {
				return fmt.Sprintf("%s says %q, not %q", who, text, word)
			}
		}
	}
	return ""
}

// hang has the making of a session's box hang at its agent, and returns what lets it go on. The
// client waits for limit.
func (w *world) hang(id string, limit time.Duration) (release func(), ended <-chan error) {
	w.t.Helper()
	for i := range 100 {
		ctx, cancel := context.WithTimeout(w.t.Context(), limit)
		w.t.Cleanup(cancel)
		result, done := make(chan error, 1), make(chan struct{})
		pid, release := testutil.CatchInit(w.t, "s-*", "agent", func() <-chan struct{} {
			go func() {
				defer close(done)
				_, err := w.api.Ensure(ctx, apitypes.SessionRequest{ID: fmt.Sprint(id, i)})
				result <- err
			}()
			return done
		})
		if pid != 0 {
			return release, result
		}
		release()
		<-done // it was caught too late
		cancel()
	}
	w.t.Fatal("no agent was caught at its start")
	return nil, nil
}

// TestHangIsTold: while no box can be built, every report of boxd's health says so, and where it hangs.
// Other sessions work. The daemon stops when told to, and nothing is left.
func TestHangIsTold(t *testing.T) {
	w := begin(t)
	w.wantHealth(true)
	release, ended := w.hang("hangs", patience)
	w.wantHealth(false, "the agent's start, with its system call filter, has taken", "state ")
	for _, id := range []string{"a", "b", "c"} {
		if r, err := w.api.Exec(t.Context(), id, apitypes.ExecRequest{Argv: []string{"true"}, Session: &apitypes.SessionSpec{}}); err != nil || r.ExitCode == nil || *r.ExitCode != 0 {
			t.Errorf("in another box: %+v, %v", r, err)
		}
	}
	release()
	if err := <-ended; err != nil {
		t.Errorf("a create that goes on in time: %v", err)
	}
	w.wantHealth(true)
	// A hanging create does not prevent the end.
	release, ended = w.hang("again", 2*time.Second)
	if err := <-ended; err == nil {
		t.Error("a session whose box hangs was made")
	}
	if err := w.Stop(); err != nil {
		t.Error(err)
	}
	release()
	if err := w.Start(); err != nil { // which removes what the hanging create left
		t.Fatal(err)
	}
	w.wantHealth(true)
}

// TestLauncherStops: a launcher that is stopped keeps no client of LangBot waiting for longer
// than 30 s, or LangBot's own patience where that is less; then all goes on.
func TestLauncherStops(t *testing.T) {
	if !testutil.Full() {
		t.Skip("takes half a minute; the same is tried with a clock of its own in package langbot")
	}
	w := begin(t)
	b := w.bot("i", "w")
	b.call("box_create_session", spec("old", nil))
	for _, pid := range w.Find(daemon.Launcher) {
		if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		defer unix.Kill(pid, unix.SIGCONT)
	}
	var wg sync.WaitGroup
	for _, c := range []struct {
		action, session string
		most            time.Duration
	}{{"box_create_session", "new", 15 * time.Second}, {"box_exec", "other", 30 * time.Second}} {
		wg.Go(func() {
			began := time.Now()
			err := b.try(c.action, spec(c.session, object{"cmd": "true", "timeout_sec": 300}), nil)
			took := time.Since(began)
			t.Logf("%s: %v after %v", c.action, err, took)
			if err == nil || !strings.HasPrefix(err.Error(), "BoxBackendUnavailableError: ") || took > c.most {
				t.Errorf("%s: %v after %v", c.action, err, took)
			}
		})
	}
	for range 20 { // also when the slots that were made ahead are used up
		wg.Go(func() {
			began := time.Now()
			if r, err := b.tryExec(spec("old", nil), "sleep 1"); time.Since(began) > 31*time.Second {
				t.Errorf("a command in an old session: %v, %v after %v", r, err, time.Since(began))
			}
		})
	}
	wg.Wait()
	for _, pid := range w.Find(daemon.Launcher) {
		if err := unix.Kill(pid, unix.SIGCONT); err != nil {
			t.Fatal(err)
		}
	}
	b.w.await("boxes are made again", func() bool { r, err := b.tryExec(spec("last", nil), "true"); return err == nil && *r.Exit == 0 })
}

// TestUnmappableWorkspaces: if workspaces are on a file system that cannot be id-mapped, the daemon is not
// ready, and says why.
func TestUnmappableWorkspaces(t *testing.T) {
	testutil.RequireRoot(t)
	dir, err := os.MkdirTemp("", "boxd-langbot-")
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("boxd-test", dir, "ramfs", 0, "mode=0711"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	w := &world{t: t}
	w.Daemon, w.api = daemon.ForTest(t, daemon.Config{Dir: dir, Args: []string{"--langbot-listen", "127.0.0.1:0"}})
	w.wantHealth(false, "workspaces cannot be mounted into boxes", "ramfs file system, which this kernel cannot id-map")
	if _, err := w.api.Ensure(t.Context(), apitypes.SessionRequest{ID: "a"}); err == nil {
		t.Error("a session was made")
	}
}
