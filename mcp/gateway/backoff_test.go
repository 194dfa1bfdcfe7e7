package gateway

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/boxd/boxd/api/apitypes"
)

// The pause doubles up to its bound, one start is tried after it, and a calm time makes a failure the first one again.
func TestBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backoff{}
		install := &Failure{Server: "x", Phase: PhaseInstall, Reason: "status 9"}
		begin := func() *attempt {
			t.Helper()
			a, f := b.begin()
			if f != nil {
				t.Fatalf("a start is refused: %v", f)
			}
			return a
		}
		wait := func(seconds int) { time.Sleep(time.Duration(seconds) * time.Second) }
		fails := func(want int) {
			t.Helper()
			if f := begin().fail(install); f.RetryAfter != want {
				t.Errorf("retry after %d s, want %d", f.RetryAfter, want)
			}
		}
		for _, seconds := range []int{1, 2, 4, 8, 16, 32, 60, 60} {
			fails(seconds)
			wait(seconds - 1)
			if _, f := b.begin(); f == nil || f.Phase != PhaseInstall || f.RetryAfter != 1 || !strings.Contains(f.Error(), "install: status 9; it is started again in 1 s") {
				t.Errorf("a second before the end of the pause: %v", f)
			}
			wait(1)
		}

		// After the pause one start is tried at a time.
		one := begin()
		if _, f := b.begin(); f == nil || f.RetryAfter != 1 {
			t.Errorf("a second start meanwhile: %v", f)
		}
		one.abandon()
		one = begin()
		one.succeed()
		begin()

		// A failure soon after that goes on with the pauses, a later one begins anew.
		fails(60)
		wait(60)
		begin().succeed()
		wait(61)
		fails(1)
		wait(1)
		begin().succeed()

		// Of starts at once one failure counts, and the others learn of it.
		wait(120)
		several := []*attempt{begin(), begin(), begin()}
		if several[1].overtaken() != nil {
			t.Error("overtaken by nothing")
		}
		for i, a := range several {
			if i == 2 && (a.overtaken() == nil || a.overtaken().Phase != PhaseInstall) {
				t.Errorf("overtaken by %v", a.overtaken())
			}
			if f := a.fail(install); f.RetryAfter != 1 || a.fail(install) != install {
				t.Errorf("failure %d: retry after %d s", i, f.RetryAfter)
			}
		}
		wait(1)
		begin().succeed()

		// What the API refuses to a caller makes nobody wait.
		refused := &Failure{Phase: PhaseStart, Problem: &apitypes.Problem{Status: 429}, RetryAfter: 7}
		if f := begin().fail(refused); f.RetryAfter != 7 {
			t.Errorf("a quota: %+v", f)
		}
		begin().succeed()

		// A process that ends is followed by a start at once, until it does so again.
		wait(120)
		b.lost(&Failure{Phase: PhaseLost})
		begin().succeed()
		b.lost(&Failure{Phase: PhaseLost})
		if _, f := b.begin(); f == nil || f.RetryAfter != 2 {
			t.Errorf("after a second end: %v", f)
		}
	})
}

// A server whose install step fails is not installed again with each request, in any mode.
func TestInstallBackoff(t *testing.T) {
	for _, mode := range []string{ModeShared, ModeSession, ModeRequest} {
		t.Run(mode, func(t *testing.T) {
			f := &fakeAPI{answer: func(request string) (int, string) {
				switch {
				case strings.HasPrefix(request, "POST /mcp-x-install/"):
					return 500, `{"code":"internal","status":500,"detail":"the disk is broken"}`
				case request == "GET /mcp-x/processes":
					return 200, `{"processes":[]}`
				case strings.HasPrefix(request, "POST"):
					return 200, "{}"
				}
				return 404, notThere
			}}
			who := f.caller(t)
			g := New(Options{Servers: []Server{{Name: "x", Mode: mode, Install: "false"}}, Caller: func(*http.Request) (Caller, error) { return who, nil }})
			defer g.Close()
			body, revision := `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, statelessSince
			if mode == ModeSession {
				body, revision = `{"jsonrpc":"2.0","id":1,"method":"initialize"}`, ""
			}
			ask := func() (f Failure) {
				r := httptest.NewRequest("POST", "/x", strings.NewReader(body))
				r.Header.Set("Content-Type", "application/json")
				r.Header.Set("Mcp-Protocol-Version", revision)
				w := httptest.NewRecorder()
				g.ServeHTTP(w, r)
				var answer struct{ Error struct{ Data *Failure } }
				answer.Error.Data = &f
				if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil {
					t.Errorf("%v: %s", err, w.Body)
				}
				return f
			}
			installs := func() (n int) {
				for _, request := range f.requests() {
					if strings.HasPrefix(request, "POST /mcp-x-install/") {
						n++
					}
				}
				return n
			}
			starts := g.startsOf(g.servers["x"], "a")
			starts.failures, starts.retryAt = 3, time.Now() // so that the pauses are longer than a round on a slow machine
			for round, pause := range []int{8, 16, 32} {
				var asking sync.WaitGroup
				for range 50 {
					asking.Go(func() {
						if f := ask(); f.Phase != PhaseInstall || f.RetryAfter < 1 || f.RetryAfter > pause {
							t.Errorf("round %d: %+v", round, f)
						}
					})
				}
				asking.Wait()
				if n := installs(); n != 1 {
					t.Errorf("round %d: the install step ran %d times", round, n)
				}
				starts.retryAt = time.Now() // instead of waiting
			}
		})
	}
}
