package programs

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/testutil"
	"github.com/boxd/boxd/test/boxes"
)

// TestRefused: what docs/compatibility.md says of commands that a box refuses, and of those that work, is what their
// users see.
func TestRefused(t *testing.T) {
	testutil.RequireRoot(t)
	text, err := os.ReadFile("../../docs/compatibility.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## What a box refuses\n")
	section, _, _ = strings.Cut(section, "\n## ")
	table, works, _ := strings.Cut(section, "\nThese work: ")
	refused := regexp.MustCompile("(?m)^\\| `(.+?)` \\| `(.+?)`").FindAllStringSubmatch(table, -1)
	if len(refused) < 10 || !strings.HasPrefix(works, "`") {
		t.Fatalf("the test is blind: %q, %q", refused, works)
	}
	for _, m := range regexp.MustCompile("`(.+?)`").FindAllStringSubmatch(works, -1) {
		refused = append(refused, []string{"", m[1], ""})
	}
	b, remove := boxes.Create(t, boxes.Start(t), engine.Spec{TmpSize: 64 << 20, Limits: engine.Limits{Memory: 512 << 20, PIDs: 256}})
	defer remove()
	for _, m := range refused {
		command, says := m[1], m[2]
		t.Run(command, func(t *testing.T) {
			program, _, _ := strings.Cut(command, " ")
			testutil.RequireProgram(t, program)
			var out strings.Builder
			r, err := engine.Run(t.Context(), b, engine.Command{
				Args: []string{"sh", "-c", command}, Env: []string{"LC_ALL=C.UTF-8", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin"},
				Stdout: &out, Stderr: &out, Dir: "/tmp/work", MakeDir: true, Timeout: time.Minute,
			})
			if err != nil {
				t.Fatal(err)
			}
			if r.Verdict != engine.Exited || (r.ExitCode == 0) != (says == "") || !strings.Contains(out.String(), says) {
				t.Errorf("%s, status %d, want %q: %s", r.Verdict, r.ExitCode, says, tail(out.String()))
			}
		})
	}
}
