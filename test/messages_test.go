package test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// quoted is a message in the first cell of a table row; placeholder is a part of it that varies.
var (
	quoted      = regexp.MustCompile("`([^`]+)`")
	placeholder = regexp.MustCompile(`…|\bN\b|\d+`)
)

// kernelSays is the one message there that is not ours.
const kernelSays = "permission denied"

// TestMessages: the messages that docs/operations.md explains are messages of the programs.
func TestMessages(t *testing.T) {
	source := goSource(t)
	count := 0
	for _, heading := range []string{"## When the kernel cannot build boxes\n", "## Troubleshooting\n"} {
		_, section, found := strings.Cut(read(t, "../docs/operations.md"), heading)
		if !found {
			t.Fatalf("docs/operations.md has no %q", heading)
		}
		section, _, _ = strings.Cut(section, "\n## ")
		for line := range strings.Lines(section) {
			cell, _, row := strings.Cut(strings.TrimPrefix(line, "| "), " | ")
			if !row || !strings.HasPrefix(line, "|") {
				continue
			}
			for _, m := range quoted.FindAllStringSubmatch(cell, -1) {
				for _, part := range placeholder.Split(m[1], -1) {
					part = strings.TrimRight(strings.TrimSpace(part), ",")
					if strings.Contains(part, " ") && part != kernelSays {
						count++
						if !strings.Contains(source, part) {
							t.Errorf("docs/operations.md explains %q, which no program says", part)
						}
					}
				}
			}
		}
	}
	if count < 10 {
		t.Errorf("%d messages were found: the test is blind", count)
	}
}

// goSource is the code of the programs, without tests.
func goSource(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	err := filepath.WalkDir("..", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".git" || d.Name() == "node_modules" || d.Name() == "test"):
			return filepath.SkipDir
		case !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(name)
		all.Write(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all.String()
}
