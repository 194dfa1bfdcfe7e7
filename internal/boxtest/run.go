package boxtest

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/engine"
)

// Patience bounds every step that should take milliseconds, so that a hang is a
// failure with a name. It never decides between right and wrong.
var Patience = func() time.Duration {
	if os.Getenv("BOXD_TEST_VM") != "" {
		return 5 * time.Minute
	}
	return time.Minute
}()

// Outcome is a result with the output.
type Outcome struct {
	engine.Result
	Stdout, Stderr string
}

// Run runs a command and keeps its output, except where c says where it goes.
func Run(t testing.TB, b engine.Box, c engine.Command) Outcome {
	t.Helper()
	o, err := TryRun(t, b, c)
	if err != nil {
		t.Fatalf("%q: %v", c.Args, err)
	}
	return o
}

func TryRun(t testing.TB, b engine.Box, c engine.Command) (Outcome, error) {
	t.Helper()
	var stdout, stderr strings.Builder
	if c.Stdout == nil {
		c.Stdout = &stdout
	}
	if c.Stderr == nil && c.TTY == nil {
		c.Stderr = &stderr
	}
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	r, err := engine.Run(ctx, b, c)
	if err == nil && r.Verdict == engine.Canceled {
		t.Fatalf("%q: still running after %v; stdout %q, stderr %q", c.Args, Patience, Tail(stdout.String()), Tail(stderr.String()))
	}
	return Outcome{r, stdout.String(), stderr.String()}, err
}

// Tail is the end of an output that may be long.
func Tail(s string) string {
	if len(s) > 500 {
		return "…" + s[len(s)-500:]
	}
	return s
}

// Shell is a command for sh.
func Shell(script string) engine.Command {
	return engine.Command{Args: []string{"sh", "-c", script}}
}

// Python is a command for python3, with its arguments in sys.argv.
func Python(script string, args ...string) engine.Command {
	return engine.Command{Args: append([]string{"python3", "-c", script}, args...)}
}

// Want checks how a command ended; status is the status in a shell.
func Want(t testing.TB, o Outcome, verdict engine.Verdict, status int) {
	t.Helper()
	if o.Verdict != verdict || o.Status() != status {
		t.Errorf("%s, status %d (limit %q), want %s, status %d; stdout %q, stderr %q",
			o.Verdict, o.Status(), o.Limit, verdict, status, Tail(o.Stdout), Tail(o.Stderr))
	}
}

// WantOutput runs a script that must succeed and print exactly output.
func WantOutput(t testing.TB, b engine.Box, script, output string) {
	t.Helper()
	o := Run(t, b, Shell(script))
	Want(t, o, engine.Exited, 0)
	if o.Stdout != output {
		t.Errorf("%s: printed %q, want %q", script, Tail(o.Stdout), output)
	}
}

// Begin starts a command that ends with the test at the latest.
func Begin(t testing.TB, b engine.Box, c engine.Command) engine.Process {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	p, err := b.Start(ctx, c)
	if err != nil {
		cancel()
		t.Fatalf("%q: %v", c.Args, err)
	}
	t.Cleanup(cancel)
	return p
}

// Wait is Process.Wait with an end.
func Wait(t testing.TB, p engine.Process) engine.Result {
	t.Helper()
	done := make(chan struct{})
	var r engine.Result
	var err error
	go func() {
		defer close(done)
		r, err = p.Wait()
	}()
	select {
	case <-done:
	case <-time.After(Patience):
		t.Fatalf("command has not ended after %v", Patience)
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Figure is a figure of a receipt that every host of today must have.
func Figure[T any](t testing.TB, name string, v *T) T {
	t.Helper()
	if v == nil {
		t.Fatalf("receipt: %s was not measured", name)
	}
	return *v
}

func Remove(t testing.TB, b engine.Box) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	if err := b.Remove(ctx); err != nil {
		t.Error(err)
	}
}

func Update(t testing.TB, b engine.Box, l engine.Limits) {
	t.Helper()
	if err := b.Update(t.Context(), engine.Change{Limits: &l}); err != nil {
		t.Fatal(err)
	}
}

func Change(t testing.TB, b engine.Box, c engine.Change) {
	t.Helper()
	if err := b.Update(t.Context(), c); err != nil {
		t.Fatal(err)
	}
}

func WantField(t testing.TB, err error, field string) {
	t.Helper()
	var bad *engine.FieldError
	if !errors.As(err, &bad) || bad.Field != field || strings.Contains(err.Error(), "\n") || bad.Rule == "" || bad.Value == "" {
		t.Errorf("%v, want one line about %s", err, field)
	}
}
