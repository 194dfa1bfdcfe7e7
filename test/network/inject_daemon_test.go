package network

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/internal/testutil"
)

// TestInjectDaemon: a secret of the configuration reaches its server, and no file, log or answer
// of the daemon, while a session is made, uses it, and is removed.
func TestInjectDaemon(t *testing.T) {
	testutil.RequireRoot(t)
	file := filepath.Join(testutil.ReachableDir(t, ""), "key") // not beside the daemon's own files
	set := func(value string) {
		if err := os.WriteFile(file, []byte(value), 0o644); err != nil { // the daemon's user has a number of its own
			t.Fatal(err)
		}
	}
	set("Bearer TopSecret-first")
	t.Setenv("NETWORK_TEST_KEY", "TopSecret-variable")
	d, c := startDaemon(t, `
  agent:
    network: true
    network_rules:
      public: false
      allow: [inject.example, good.example, open.wild.example]
      inject:
        - {host: inject.example, header: Authorization, value_from: {file: `+file+`}}
        - {host: open.wild.example, header: X-Api-Key, value_from: {env: NETWORK_TEST_KEY}}
`)
	got := make(chan string, 16)
	world.at(t, "/secret", func(w http.ResponseWriter, r *http.Request) {
		got <- fmt.Sprint(r.TLS != nil, r.Header["Authorization"], r.Header["X-Api-Key"])
		w.Header().Set("X-Echo", r.Header.Get("Authorization")+r.Header.Get("X-Api-Key"))
	})
	var said []any
	curl := func(url string) string {
		t.Helper()
		r := execute(t, c, "s", apitypes.ExecRequest{Argv: []string{"curl", "-sSi", url}, Session: session("agent")})
		said = append(said, r)
		return r.Stdout
	}
	world.take()
	for _, value := range []string{"Bearer TopSecret-first", "Bearer TopSecret-second"} {
		set(value)
		for url, want := range map[string]string{
			"http://inject.example/secret": "true[" + value + "] []", "http://open.wild.example/secret": "true[] [TopSecret-variable]", "http://good.example/secret": "false[] []",
		} {
			answer := curl(url)
			select {
			case saw := <-got:
				if strings.ReplaceAll(saw, " ", "") != strings.ReplaceAll(want, " ", "") {
					t.Errorf("%s: the server saw %s, want %s", url, saw, want)
				}
			default:
				t.Errorf("%s: the server was not asked: %s", url, answer)
			}
		}
	}
	hits, _ := world.take()
	for _, h := range hits {
		if h.at.Port() == 80 && h.at.Addr().String() != goodAddr && h.at.Addr().String() != goodAddr6 {
			t.Errorf("a request with a secret reached %v", h)
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if answer := curl("http://inject.example/secret"); !strings.Contains(answer, " 502 ") || strings.Contains(answer, file) {
		t.Errorf("without the file: %q", answer)
	}
	list, err := c.Profiles(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	view, err := c.Session(t.Context(), "s")
	if err != nil {
		t.Fatal(err)
	}
	all, err := json.Marshal(append(said, list, view, networkOf(t, c, "s")))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(all), "TopSecret") || strings.Contains(string(all), file) {
		t.Errorf("the daemon answered %s", all)
	}
	if r := execute(t, c, "s", apitypes.ExecRequest{Shell: `cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' '\n' | grep -c 'TopSecre[t]'`}); r.Stdout != "0\n" {
		t.Errorf("in /proc of the box: %q", r.Stdout)
	}
	// Database, audit log, events, workspaces and the log of the daemon.
	files, seen := 0, false
	err = filepath.WalkDir(d.Dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() || filepath.Base(path) == "config.yaml" {
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return nil
		}
		files++
		seen = seen || bytes.Contains(b, []byte("inject.example")) // the search finds what is there
		if bytes.Contains(b, []byte("TopSecret")) {
			t.Errorf("%s has the secret", path)
		}
		return nil
	})
	if err != nil || files == 0 || !seen {
		t.Errorf("%d files read, the name of the host among them: %v; %v", files, seen, err)
	}
}
