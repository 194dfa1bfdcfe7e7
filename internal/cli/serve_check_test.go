package cli

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/boxd/boxd/internal/doctor"
)

// serve --check starts nothing, and tells all that it finds.
func TestServeCheck(t *testing.T) {
	bad := errors.New("user \"x\": no\nsuch user")
	for _, c := range []struct {
		name   string
		args   []string
		found  []error
		facts  doctor.Facts
		status int
		parts  []string
	}{
		{"fine", nil, nil, doctor.Facts{}, 0, []string{"ok        configuration       defaults, environment and flags", "boxd serve can start.\n"}},
		{"two mistakes", nil, []error{bad, errors.New("other")}, doctor.Facts{}, 1, []string{`failed    configuration       user "x": no; such user` + "\n", "other\n", "cannot start"}},
		{"no box", nil, nil, doctor.Facts{Box: doctor.Trial{Error: errors.New("no namespaces")}}, 1, []string{"failed    box                 no namespaces\n", "cannot start"}},
		{"no configuration", []string{"--listen", "nonsense:x:y"}, nil, doctor.Facts{}, 1, []string{"failed    configuration", "listen", "cannot start"}},
		{"a user", nil, nil, doctor.Facts{UID: 1000, Box: doctor.Trial{Error: errors.New("only root")}}, 0, []string{"boxd serve can start.\n"}},
		{"a user on an old kernel", nil, nil, doctor.Facts{UID: 1000, Release: "4.4.0"}, 1, []string{"failed    kernel", "cannot start"}},
	} {
		v := newInvocation(t)
		v.Serve = func(ServeOptions) error { t.Error("it was started"); return nil }
		v.CheckServe = func(o ServeOptions) []error {
			if o.Config.StateDir != "/var/lib/boxd" || o.InitError != nil {
				t.Errorf("%s: %+v", c.name, o)
			}
			return c.found
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
