package skills

import (
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"
)

func TestFront(t *testing.T) {
	for name, c := range map[string]struct {
		text                    string
		skill, display, desc, i string
	}{
		"none":               {"text\n", "", "", "", "text\n"},
		"empty":              {"", "", "", "", ""},
		"usual":              {"---\nname: a\ndisplay_name: A b\ndescription: c d.\n---\n\ntext\n", "a", "A b", "c d.", "text\n"},
		"CRLF":               {"---\r\nname: a\r\ndescription: d\r\n---\r\n\r\nx\r\ny", "a", "", "d", "x\ny"},
		"CR":                 {"---\rname: a\r---\rx\ry", "a", "", "", "x\ny"},
		"BOM":                {"\ufeff---\nname: a\n---\nx", "a", "", "", "x"},
		"BOM and CRLF":       {"\ufeff---\r\nname: a\r\n---\r\nx", "a", "", "", "x"},
		"spaces behind":      {"---  \nname: a\n---\t\nx", "a", "", "", "x"},
		"no end":             {"---\nname: a\ntext", "", "", "", "---\nname: a\ntext"},
		"ends the file":      {"---\nname: a\n---", "a", "", "", ""},
		"only the fence":     {"---", "", "", "", "---"},
		"empty head":         {"---\n---\nx", "", "", "", "x"},
		"another line":       {"--- x\nname: a\n---\n", "", "", "", "--- x\nname: a\n---\n"},
		"numbers":            {"---\nname: 123\ndescription: 1.50\n---\n", "123", "", "1.50", ""},
		"bool":               {"---\nname: true\ndescription: yes\n---\n", "true", "", "yes", ""},
		"null":               {"---\nname: null\ndescription: ~\ndisplay_name:\n---\nx", "", "", "", "x"},
		"date":               {"---\nname: 2026-01-01\n---\n", "2026-01-01", "", "", ""},
		"list":               {"---\nname: a\ndescription:\n  - x\n  - y\n---\n", "a", "", "", ""},
		"map":                {"---\nname: a\ndescription:\n  x: y\n---\n", "a", "", "", ""},
		"other keys":         {"---\nlicense: MIT\nmetadata:\n  name: no\nname: a\n---\n", "a", "", "", ""},
		"single quoted":      {"---\nname: 'a'\ndescription: 'it''s'\n---\n", "a", "", "it's", ""},
		"double quoted":      {"---\nname: \"a\"\ndescription: \"x\\ny\"\n---\n", "a", "", "x\ny", ""},
		"quoted key":         {"---\n\"name\": a\n---\n", "a", "", "", ""},
		"literal":            {"---\nname: a\ndescription: |\n  x\n  y\n---\n", "a", "", "x\ny", ""},
		"folded":             {"---\nname: a\ndescription: >-\n  x\n  y\n---\n", "a", "", "x y", ""},
		"plain, two lines":   {"---\nname: a\ndescription: x\n  y\n---\n", "a", "", "x y", ""},
		"flow":               {"---\n{name: a, description: b}\n---\n", "a", "", "b", ""},
		"comment":            {"---\n# c\nname: a # d\n---\n", "a", "", "", ""},
		"anchor":             {"---\nname: &n a\ndisplay_name: *n\n---\n", "a", "", "", ""},
		"tag":                {"---\nname: !!str a\n---\n", "a", "", "", ""},
		"unicode":            {"---\nname: 技能\ndescription: é\n---\n", "技能", "", "é", ""},
		"fence in the text":  {"---\nname: a\n---\nx\n---\ny", "a", "", "", "x\n---\ny"},
		"colon in a value":   {"---\nname: a\ndescription: Use this: when needed\n---\nx", "a", "", "Use this: when needed", "x"},
		"no YAML at all":     {"---\nname: \"a\ndescription: [\n---\nx", `"a`, "", "[", "x"},
		"tabs":               {"---\nname:\ta\n\tx: y\n---\nx", "a", "", "", "x"},
		"a list for a head":  {"---\n- a\n- b\n---\nx", "", "", "", "x"},
		"a scalar as a head": {"---\nhello\n---\nx", "", "", "", "x"},
		"head too long":      {"---\nx: " + strings.Repeat("y", maxFront) + "\n---\nx", "", "", "", "---\nx: " + strings.Repeat("y", maxFront) + "\n---\nx"},
	} {
		t.Run(name, func(t *testing.T) {
			f := parseFront(c.text)
			if f.Name != c.skill || f.DisplayName != c.display || f.Description != c.desc || f.instructions != c.i {
				t.Errorf("got %q", f)
			}
		})
	}
}

// Front matter of the largest size is cheap to read, whatever it contains.
func TestFrontIsBounded(t *testing.T) {
	for name, unit := range map[string]string{
		"flow lists": "[", "flow maps": "{", "block lists": "- ", "keys": "? ", "quotes": "'", "double quotes": `"`, "anchors": "&a ", "aliases": "*a ",
		"colons": "a: ", "lines": "a:\n", "deeper": "a:\n ", "pipes": "a: |\n", "comments": "#\n", "tags": "!!a ", "dashes": "-\n", "commas": "[,", "documents": "...\n",
		"empty lines": "\n", "deeper pipes": " a: |\n", "documents of lists": "? a\n-\n", "bombs": "a: &a [*a,*a]\n", "merge": "<<: *a\n",
	} {
		t.Run(name, func(t *testing.T) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			many := strings.Repeat(unit, (maxFront-100)/len(unit))
			for _, text := range []string{"---\n" + many + "\n---\nx", "---\na: |\n" + many + "\n---\nx"} {
				took := time.Hour
				for tries := 0; tries < 5 && took > 200*time.Millisecond; tries++ { // a list has up to maxSkills of them
					start := threadTime(t)
					if f := parseFront(text); f.instructions != "x" {
						t.Errorf("%d bytes of instructions", len(f.instructions))
					}
					took = min(took, threadTime(t)-start)
				}
				if took > 200*time.Millisecond {
					t.Errorf("took %v", took)
				}
			}
		})
	}
}

// threadTime returns the processor time of the calling thread, which does not depend on the load of
// the machine.
func threadTime(t *testing.T) time.Duration {
	t.Helper()
	var use syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_THREAD, &use); err != nil {
		t.Fatal(err)
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}

func FuzzFront(f *testing.F) {
	f.Add(entryText1, "a", "b", "c")
	f.Add("\ufeff---\r\nname: [\r\n---\r\n", "yes", "a: b", "\x7f")
	f.Add("---\nname: &a x\ndescription: |\n  x\nother: *a\n---\nx", "1", "'", "\"")
	f.Add("---\n{name: a, x: y}\n---\n", "", " ", "\n")
	f.Fuzz(func(t *testing.T, text, name, display, description string) {
		if !utf8.ValidString(text) || !utf8.ValidString(name) || !utf8.ValidString(display) || !utf8.ValidString(description) {
			return
		}
		read := parseFront(text)
		read.Name, read.DisplayName, read.Description = strings.TrimSpace(name), strings.TrimSpace(display), strings.TrimSpace(description)
		written, err := entryText(read)
		if err != nil {
			return
		}
		back := parseFront(written)
		if back.Name != read.Name || back.DisplayName != read.DisplayName || back.Description != read.Description || back.instructions != strings.TrimLeft(read.instructions, "\n") {
			t.Errorf("%q\nbecame %q\nby %q", read, back, written)
		}
	})
}
