package conformance

import (
	"strings"
	"testing"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/boxtest"
)

// warmSpec is a spec with a zygote that all commands "python3" may use.
func warmSpec() engine.Spec {
	return engine.Spec{Zygotes: []engine.Zygote{{Name: "python", Command: []string{"python3"}, Preload: []string{"json"}, Match: true}}}
}

// zygotes: where there are zygotes, and where there are none, commands that may use one run the same way.
func (e *suite) zygotes(t testing.TB) {
	b := e.create(t, warmSpec())
	c := boxtest.Python(`import json, os, sys; print(json.dumps([sys.argv[1:], os.getcwd(), os.environ["A"], sys.stdin.read()])); sys.exit(9)`, "x", "")
	c.Env, c.Dir, c.Zygote = []string{"A=b"}, "/tmp", "python"
	for range 4 {
		c.Stdin = strings.NewReader("in")
		o := boxtest.Run(t, b, c)
		boxtest.Want(t, o, engine.Exited, 9)
		if want := `[["x", ""], "/tmp", "b", "in"]` + "\n"; o.Stdout != want || o.Stderr != "" {
			t.Errorf("warm %v: %q, %q; want %q", o.Warm, o.Stdout, o.Stderr, want)
		}
	}
	c.Zygote = "perl"
	_, err := b.Start(t.Context(), c)
	boxtest.WantField(t, err, "zygote")
}

// zygotesAdopted: with a client its zygotes end, and the launcher's death changes nothing for them. The next client's
// commands run, at any moment of all that.
func (e *suite) zygotesAdopted(t testing.TB) {
	s := e.private(t)
	b := s.create(t, warmSpec())
	run := func() bool {
		t.Helper()
		o := boxtest.Run(t, b, boxtest.Python("print(6 * 7)"))
		boxtest.Want(t, o, engine.Exited, 0)
		if o.Stdout != "42\n" {
			t.Errorf("warm %v: %q, %q", o.Warm, o.Stdout, o.Stderr)
		}
		return o.Warm
	}
	for round := range 6 {
		// In the middle of the start of a zygote, of a refill, or after both.
		for range round {
			run()
		}
		if round%2 == 1 {
			s.KillLauncher(t)
			run()
		}
		s.disconnect(t)
		s.connect(t)
		b = s.adopt(t, b.ID())
		if pids := s.Commands(t, b.ID()); len(pids) > 0 && e.Isolation != spec.IsolationGVisor {
			t.Errorf("round %d: processes after the adoption: %v", round, pids)
		}
	}
	run()
	if err := b.Remove(t.Context()); err != nil {
		t.Error(err)
	}
}
