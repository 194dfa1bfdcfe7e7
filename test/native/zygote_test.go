package native

import (
	"testing"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/boxtest"
)

// warmPython is a zygote that all commands "python3" use.
func warmPython(preload ...string) engine.Zygote {
	return engine.Zygote{Name: "python", Command: []string{"python3"}, Preload: preload, Match: true}
}

// warm runs a command again and again until a spare has taken it over.
func warm(t testing.TB, b engine.Box, c engine.Command) boxtest.Outcome {
	t.Helper()
	for end := time.Now().Add(boxtest.Patience); ; {
		if o := boxtest.Run(t, b, c); o.Warm {
			return o
		}
		if time.Now().After(end) {
			t.Fatalf("%q was never taken over by a spare", c.Args)
		}
	}
}

func TestZygote(t *testing.T) {
	b := newBox(t, engine.Spec{Zygotes: []engine.Zygote{warmPython("json")}})
	for range 5 {
		begun := time.Now()
		o := warm(t, b, boxtest.Python("import json, sys; print(json.dumps(sys.argv)); sys.exit(7)", "a", "b"))
		boxtest.Want(t, o, engine.Exited, 7)
		if o.Stdout != `["-c", "a", "b"]`+"\n" {
			t.Errorf("printed %q, %q", o.Stdout, o.Stderr)
		}
		t.Log(time.Since(begun), o.Receipt.Wall, *o.Receipt.User, *o.Receipt.System, *o.Receipt.MemoryPeak, *o.Receipt.PIDsPeak)
	}
}
