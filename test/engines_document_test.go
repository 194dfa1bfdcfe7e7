package test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/boxd/boxd/engine"
)

var update = flag.Bool("update", false, "write the tables of docs/engines.md anew")

// TestEnginesDocument: the tables of docs/engines.md are those of package engine.
func TestEnginesDocument(t *testing.T) {
	const path = "../docs/engines.md"
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	capabilities := "| capability | what it means |\n|---|---|\n"
	for _, c := range engine.Capabilities {
		capabilities += fmt.Sprintf("| `%s` | %s |\n", c.Name, c.Meaning)
	}
	differences := "| engine | isolation | capability | what holds instead | reason |\n|---|---|---|---|---|\n"
	for _, d := range engine.Differences {
		differences += fmt.Sprintf("| `%s` | `%s` | `%s` | %s | %s |\n", d.Engine, d.Isolation, d.Capability, d.Instead, d.Reason)
	}
	text := string(content)
	for name, table := range map[string]string{"capabilities": capabilities, "differences": differences} {
		begin, end := "<!-- "+name+": from package engine -->\n", "<!-- end of "+name+" -->"
		before, rest, ok := strings.Cut(text, begin)
		got, after, ended := strings.Cut(rest, end)
		if !ok || !ended {
			t.Fatalf("%s: no %q and %q", path, begin, end)
		}
		if got != table && !*update {
			t.Errorf("%s: the table of %s is not that of package engine: go test ./test -run TestEnginesDocument -update", path, name)
		}
		text = before + begin + table + end + after
	}
	if *update {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
