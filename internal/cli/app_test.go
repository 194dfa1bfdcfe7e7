package cli

import (
	"bytes"
	"strings"
	"testing"
)

// TestOneCommand: a command that is built alone has the same help and flags as beside all others, and stands in the
// table under its own name.
func TestOneCommand(t *testing.T) {
	a := &App{LookupEnv: func(string) (string, bool) { return "", false }}
	whole := a.Command()
	for _, c := range a.commands() {
		help := func(all bool) string {
			var out bytes.Buffer
			root := whole
			if !all {
				root = a.command(c.name)
				if cmds := root.Commands(); len(cmds) != 2 { // and help
					t.Errorf("%s: built with %d others", c.name, len(cmds)-2)
				}
			}
			root.SetOut(&out)
			root.SetArgs([]string{c.name, "--help"})
			if err := root.Execute(); err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
			return out.String()
		}
		alone, beside := help(false), help(true)
		if alone != beside || !strings.Contains(alone, "boxd "+c.name) {
			t.Errorf("help of %s, alone: %q, beside all others: %q", c.name, alone, beside)
		}
	}
	for _, other := range []string{"", "images", "version", "completion", "help", "__complete", "nothing"} {
		if got := len(a.command(other).Commands()); got != len(a.commands())+3 {
			t.Errorf("%q: %d commands, want all", other, got)
		}
	}
}
