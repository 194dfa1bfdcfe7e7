package cli

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/doctor"
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

// TestDoctorWithoutInit: that boxd-init is missing is a finding like any other.
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
	if err != nil || !strings.HasSuffix(named, "/"+initName) {
		t.Errorf("boxd-init by BOXD_INIT: %q, %v", named, err)
	}
	v.LookupEnv = func(key string) (string, bool) { return "/env", key == "BOXD_STATE_DIR" }
	if got := v.stateDir(""); got != "/env" {
		t.Errorf("state directory %q", got)
	}
	// Beside the test binary there is none, and tests do not rely on what is
	// installed.
	if _, err := v.initPath(t.TempDir()); !errors.Is(err, engine.ErrNoLauncher) {
		t.Errorf("a directory as boxd-init: %v", err)
	}
}
