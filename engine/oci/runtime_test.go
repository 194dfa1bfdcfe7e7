package oci

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/internal/testutil"
)

// TestProbe: a runtime that answers anything but what it should cannot be used, for one clear reason.
func TestProbe(t *testing.T) {
	const version = `echo runc version 1.1.5+ds1; echo spec: 1.0.2; `
	const features = `echo '{"linux":{"namespaces":["mount","pid","ipc","uts","user","network"]}}'`
	for _, c := range []struct {
		name, version, features string
		words                   []string // nil: it can be used
	}{
		{"sound", version, features, nil},
		{"another runtime", "echo crun version 1.8.1", features, nil},
		{"too old", "echo runc version 1.0.3", features, []string{"runc 1.0.3 is too old", "1.1 or newer"}},
		{"version of words", "echo runc version unknown", features, []string{`its version is "unknown"`}},
		{"garbage", `printf '\001\002 version \377'`, features, []string{"it is no OCI runtime"}},
		{"silence", "true", features, []string{"it is no OCI runtime"}},
		{"long", "yes x | head -c 100000", features, []string{"it is no OCI runtime"}},
		{"fails", "echo one >&2; echo two >&2; exit 3", features, []string{"--version", "exit status 3", "one; two"}},
		{"fails in silence", "exit 3", features, []string{"--version", "exit status 3"}},
		{"is killed", "kill -9 $$", features, []string{"signal: killed"}},
		{"no features", version, "echo unknown command >&2; exit 1", []string{"features", "unknown command", "is runc 1.1.5+ds1 too old?"}},
		{"all of its commands", version, "for i in $(seq 100); do echo Usage: runsc create $i >&2; done; exit 128", []string{"features: exit status 128: Usage: runsc create 1; ", "…: is runc 1.1.5+ds1 too old?"}},
		{"features of text", version, "echo none", []string{"runc 1.1.5+ds1", "reading its features"}},
		{"no user namespaces", version, `echo '{"linux":{"namespaces":["mount","pid","ipc","uts"]}}'`, []string{`namespaces of type "user"`}},
	} {
		path := script(t, "case $1 in --version) "+c.version+";; features) "+c.features+";; esac")
		info, err := Runtime{Path: path}.Probe(t.Context())
		switch {
		case c.words != nil:
			wantUnusable(t, err, c.words...)
		case err != nil || !strings.HasPrefix(c.version, "echo "+info.Name+" version "+info.Version):
			t.Errorf("%s: %v, %v", c.name, info, err)
		}
	}
}

// TestProbeEnds: a runtime that hangs, and what it has started, is killed; another one is killed even
// if a process that left its group holds its output.
func TestProbeEnds(t *testing.T) {
	for _, text := range []string{"sleep 3600 & wait", "setsid sleep 5 & wait"} {
		path := script(t, text)
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		began := time.Now()
		_, err := Runtime{Path: path}.Probe(ctx)
		wantUnusable(t, err, `does not answer to "--version"`)
		if took := time.Since(began); took > 4*time.Second {
			t.Errorf("%s: took %v", text, took)
		}
	}
}

// TestRuncAnswers: the distribution's runc can be used.
func TestRuncAnswers(t *testing.T) {
	testutil.RequireProgram(t, "runc")
	path, err := Find("runc")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Check(path); err != nil {
		t.Error(err)
	}
	info, err := Runtime{Path: path}.Probe(t.Context())
	if err != nil || info.Name != "runc" {
		t.Errorf("%v, %v", info, err)
	}
}

// TestLastError: of a log, only errors count, in one line, whatever else it has.
func TestLastError(t *testing.T) {
	for _, c := range []struct{ log, want string }{
		{"", ""},
		{"garbage\n\x00\xff{", ""},
		{`{"level":"warning","msg":"a"}`, ""},
		{`{"level":"error","msg":"a\nb"}` + "\n" + `{"level":"info","msg":"c"}`, "a; b"},
		{`{"level":"error","msg":"a"}` + "\n" + `{"level":"fatal","msg":"b"}` + "\n" + `[]`, "b"},
	} {
		path := filepath.Join(t.TempDir(), "log")
		if err := os.WriteFile(path, []byte(c.log), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := lastError(path); got != c.want {
			t.Errorf("%q: %q, want %q", c.log, got, c.want)
		}
	}
	if got := lastError("/absent"); got != "" {
		t.Errorf("no log: %q", got)
	}
}
