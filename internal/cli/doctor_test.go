package cli

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/doctor"
	"github.com/boxd/boxd/internal/installed"
)

func TestDoctor(t *testing.T) {
	ill := errors.New("no cgroups")
	for _, c := range []struct {
		args    string
		err     error
		status  int
		wantOut string
	}{
		{"doctor", nil, 0, "Boxes can be built here.\n"},
		{"doctor", ill, 1, "Boxes cannot be built here.\n"},
		{"doctor --json", ill, 1, `"ok": false`},
		{"doctor --json", nil, 0, `"ok": true`},
		{"doctor --explain", ill, 1, "because: follows from"},
		{"doctor --explain --json", ill, 1, `"cause": "`},
	} {
		v := newInvocation(t)
		v.Examine = func(ctx context.Context, h doctor.Host) doctor.Facts {
			if h.Version != "1.2.3" || h.InitError != nil {
				t.Errorf("%s: host %+v", c.args, h)
			}
			if eng, err := h.NewEngine(ctx); eng != v.fake || err != nil {
				t.Errorf("%s: engine %v, %v", c.args, eng, err)
			}
			return doctor.Facts{Version: h.Version, Release: "6.12.90", Machine: "x86_64", InitPath: h.InitPath, Box: doctor.Trial{Error: c.err}}
		}
		status := v.Main(strings.Fields(c.args + " --state-dir /run/test"))
		if status != c.status || !strings.Contains(v.stdout.String(), c.wantOut) || v.stderr.Len() > 0 {
			t.Errorf("%s: status %d, stdout %q, stderr %q", c.args, status, v.stdout.String(), v.stderr.String())
		}
		if strings.HasSuffix(c.args, "--json") && !json.Valid(v.stdout.Bytes()) {
			t.Errorf("%s: not JSON: %s", c.args, v.stdout.String())
		}
		if v.fake.options.StateDir != "/run/test" || v.fake.options.InitPath == "" {
			t.Errorf("%s: engine options %+v", c.args, v.fake.options)
		}
	}
}

// TestDoctorWithoutInit: a missing boxd-init is a finding like any other.
func TestDoctorWithoutInit(t *testing.T) {
	v := newInvocation(t)
	v.Examine = func(_ context.Context, h doctor.Host) doctor.Facts {
		if !errors.Is(h.InitError, engine.ErrNoLauncher) {
			t.Errorf("InitError is %v", h.InitError)
		}
		return doctor.Facts{InitError: h.InitError, Box: doctor.Trial{Error: h.InitError}}
	}
	if status := v.Main([]string{"doctor", "--init", "/does/not/exist"}); status != 1 || !strings.Contains(v.stdout.String(), "failed    boxd-init") {
		t.Errorf("status %d, stdout %q, stderr %q", status, v.stdout.String(), v.stderr.String())
	}
}

func TestLocate(t *testing.T) {
	v := newInvocation(t)
	if got := v.stateDir(""); got != defaultStateDir {
		t.Errorf("state directory %q", got)
	}
	if got := v.stateDir("/x"); got != "/x" {
		t.Errorf("state directory %q", got)
	}
	named, err := v.initPath("")
	if err != nil || !strings.HasSuffix(named, "/"+installed.Init) {
		t.Errorf("boxd-init by BOXD_INIT: %q, %v", named, err)
	}
	v.LookupEnv = func(key string) (string, bool) { return "/env", key == "BOXD_STATE_DIR" }
	if got := v.stateDir(""); got != "/env" {
		t.Errorf("state directory %q", got)
	}
	// There is none beside the test binary, and tests do not rely on what is installed.
	if _, err := v.initPath(t.TempDir()); !errors.Is(err, engine.ErrNoLauncher) {
		t.Errorf("a directory as boxd-init: %v", err)
	}
}

// The doctor's own launcher creates nothing in the state directory of a daemon, which BOXD_STATE_DIR
// may name, and does not create a missing directory.
func TestDoctorLauncherDir(t *testing.T) {
	launchers, daemons := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(daemons, "boxd.db"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		env  string
		args []string
		want string
	}{
		{"", nil, "/run/boxd"},
		{launchers, nil, launchers},
		{daemons, nil, "/run/boxd"},
		{filepath.Join(launchers, "missing"), nil, "/run/boxd"},
		{daemons, []string{"--state-dir", launchers}, launchers},
		{"", []string{"--state-dir", filepath.Join(launchers, "new")}, filepath.Join(launchers, "new")},
	} {
		v := newInvocation(t)
		v.LookupEnv = func(key string) (string, bool) { return c.env, key == "BOXD_STATE_DIR" }
		v.Examine = func(_ context.Context, h doctor.Host) doctor.Facts {
			if h.RunDir != c.want {
				t.Errorf("BOXD_STATE_DIR=%s doctor %q: the launcher works in %s, want %s", c.env, c.args, h.RunDir, c.want)
			}
			return doctor.Facts{}
		}
		v.Main(append([]string{"doctor"}, c.args...))
	}
}
