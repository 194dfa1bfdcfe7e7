package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/doctor"
)

// serve --check starts nothing, and reports everything that it finds.
func TestServeCheck(t *testing.T) {
	bad := errors.New("user \"x\": no\nsuch user")
	for _, c := range []struct {
		name            string
		args            []string
		found, warnings []error
		facts           doctor.Facts
		status          int
		parts           []string
	}{
		{"fine", nil, nil, nil, doctor.Facts{}, 0, []string{"ok        configuration       defaults, environment and flags", "boxd serve can start.\n"}},
		{"two mistakes", nil, []error{bad, errors.New("other")}, nil, doctor.Facts{}, 1, []string{`failed    configuration       user "x": no; such user` + "\n", "other\n", "cannot start"}},
		{"no secret", nil, nil, []error{errors.New("x: cannot be read")}, doctor.Facts{}, 0, []string{"degraded  configuration       x: cannot be read\n", "boxd serve can start.\n"}},
		{"no box", nil, nil, nil, doctor.Facts{Box: doctor.Trial{Error: errors.New("no namespaces")}}, 1, []string{"failed    box                 no namespaces\n", "cannot start"}},
		{"no configuration", []string{"--listen", "nonsense:x:y"}, nil, nil, doctor.Facts{}, 1, []string{"failed    configuration", "listen", "cannot start"}},
		{"a user", nil, nil, nil, doctor.Facts{UID: 1000, Box: doctor.Trial{Error: errors.New("only root")}}, 0, []string{"boxd serve can start.\n"}},
		{"a user on an old kernel", nil, nil, nil, doctor.Facts{UID: 1000, Release: "4.4.0"}, 1, []string{"failed    kernel", "cannot start"}},
	} {
		v := newInvocation(t)
		v.Serve = func(ServeOptions) error { t.Error("it was started"); return nil }
		v.CheckServe = func(o ServeOptions) (found, warnings []error) {
			if o.Config.StateDir != "/var/lib/boxd" || o.InitError != nil {
				t.Errorf("%s: %+v", c.name, o)
			}
			return c.found, c.warnings
		}
		v.Examine = func(_ context.Context, h doctor.Host) doctor.Facts {
			if h.RunDir != "/run/boxd" || h.StateDir != "/var/lib/boxd" {
				t.Errorf("%s: %+v", c.name, h)
			}
			if c.facts.Release == "" {
				c.facts.Release = "6.12.1"
			}
			return c.facts
		}
		status := v.Main(append([]string{"serve", "--check"}, c.args...))
		for _, part := range c.parts {
			if status != c.status || !strings.Contains(v.stdout.String(), part) || v.stderr.Len() > 0 {
				t.Errorf("%s: status %d, %q, %q, want %d and %q", c.name, status, v.stdout.String(), v.stderr.String(), c.status, part)
			}
		}
	}
}

// serve --check says whether a refused setting comes from a flag, a variable or the file.
func TestServeCheckNamesOrigin(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte("socket: {group: games}\nprofiles: {p: {memory: 64M}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	group := &engine.FieldError{Field: "socket.group", Value: `"games"`, Rule: "is unknown"}
	for _, c := range []struct {
		env, args string
		found     error
		want      string
	}{
		{"", "", group, `socket.group "games": is unknown`},
		{"", "--socket-group games", group, `--socket-group "games": is unknown`},
		{"BOXD_SOCKET_GROUP", "", group, `environment: BOXD_SOCKET_GROUP "games": is unknown`},
		{"", "--config " + file, group, file + `: socket.group "games": is unknown`},
		{"", "--config " + file + " --socket-group x", group, `--socket-group "games": is unknown`},
		{"", "--config " + file, fmt.Errorf("more: %w", group), file + `: more: socket.group "games": is unknown`},
		{"", "--socket-group games", fmt.Errorf("more: %w", group), `--socket-group: more: socket.group "games": is unknown`},
		{"", "--config " + file, &engine.FieldError{Field: "state_dir", Value: `"/x"`, Rule: "is taken"}, `state_dir "/x": is taken`}, // by default
		{"", "--config " + file, &engine.FieldError{Field: "profiles.p.memory", Value: "1", Rule: "is little"}, file + `: profiles.p.memory 1: is little`},
		{"", "--config " + file, errors.New("other"), `other`},
	} {
		v := newInvocation(t)
		lookup := v.LookupEnv
		v.LookupEnv = func(key string) (string, bool) {
			if key == c.env {
				return "games", true
			}
			return lookup(key)
		}
		v.CheckServe = func(ServeOptions) (found, warnings []error) { return []error{c.found}, nil }
		v.Examine = func(context.Context, doctor.Host) doctor.Facts { return doctor.Facts{Release: "6.12.1"} }
		v.Main(append([]string{"serve", "--check"}, strings.Fields(c.args)...))
		if want := "failed    configuration       " + c.want + "\n"; !strings.Contains(v.stdout.String(), want) {
			t.Errorf("%s serve --check %s: %q, want %q", c.env, c.args, v.stdout.String(), want)
		}
	}
}
