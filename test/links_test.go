package test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

var (
	fence   = regexp.MustCompile("(?ms)^[ \t]*(```|~~~).*?^[ \t]*(```|~~~)[ \t]*$")
	heading = regexp.MustCompile(`(?m)^#{1,6}[ \t]+(.+?)[ \t]*#*$`)
	inline  = regexp.MustCompile("`[^`\n]*`")
	link    = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	located = regexp.MustCompile("`([a-z]+)(/[A-Za-z0-9_.-]+)+`")
	named   = regexp.MustCompile(`\b(?:docs|packaging|examples)/[A-Za-z0-9_./-]*\.(?:md|ya?ml|json|service|socket)\b`)
)

// documents are the Markdown files of the repository, by path from its root.
func documents(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir("..", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".git" || d.Name() == "node_modules" || d.Name() == "bin"):
			return filepath.SkipDir
		case !strings.HasSuffix(name, ".md"):
			return nil
		}
		text, err := os.ReadFile(name)
		all[filepath.Clean(name)] = fence.ReplaceAllString(string(text), "")
		return err
	})
	if err != nil || len(all) < 5 {
		t.Fatalf("%d documents: %v", len(all), err)
	}
	return all
}

// anchors are the names that a Markdown renderer gives to the headings of text.
func anchors(text string) map[string]bool {
	names := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(text, -1) {
		title := link.ReplaceAllString(strings.ReplaceAll(m[1], "`", ""), "]")
		slug := strings.Map(func(r rune) rune {
			switch {
			case r == ' ' || r == '-':
				return '-'
			case r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
				return unicode.ToLower(r)
			}
			return -1
		}, title)
		for i, name := 1, slug; ; i++ {
			if !names[name] {
				names[name] = true
				break
			}
			name = slug + "-" + string(rune('0'+i))
		}
	}
	return names
}

// TestLinks: what the documents link to is there, with its heading, and so are the files and
// packages that they name.
func TestLinks(t *testing.T) {
	docs := documents(t)
	count := 0
	for name, text := range docs {
		for _, m := range link.FindAllStringSubmatch(inline.ReplaceAllString(text, ""), -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			count++
			file := name
			if target != "" {
				file = filepath.Join(filepath.Dir(name), target)
			}
			if _, err := os.Stat(file); err != nil {
				t.Errorf("%s: %q: there is no %s", name, m[1], file)
				continue
			}
			if anchor != "" && !anchors(docs[file])[anchor] {
				t.Errorf("%s: %q: %s has no such heading", name, m[1], file)
			}
		}
		for _, m := range located.FindAllStringSubmatch(text, -1) {
			path := strings.Trim(m[0], "`")
			if top, err := os.Stat(filepath.Join("..", m[1])); err != nil || !top.IsDir() || name == "CHANGELOG.md" || m[1] == "bin" {
				continue // not of this repository, built, or maybe not any more
			}
			if _, err := os.Stat(filepath.Join("..", path)); err != nil {
				t.Errorf("%s names %s, which is not there", name, path)
			}
		}
		for _, path := range named.FindAllString(text, -1) {
			if _, err := os.Stat(filepath.Join("..", path)); err != nil {
				t.Errorf("%s names %s, which is not there", name, path)
			}
		}
	}
	if count < 10 {
		t.Errorf("%d links were found: the test is blind", count)
	}
}

func TestAnchors(t *testing.T) {
	got := anchors("# A `code`, [b](c.md#d) & e_f\n\n## Errors\n## Errors\n")
	for _, want := range []string{"a-code-b--e_f", "errors", "errors-1"} {
		if !got[want] {
			t.Errorf("no %q in %v", want, got)
		}
	}
}
