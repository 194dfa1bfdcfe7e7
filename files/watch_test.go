package files

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/boxd/boxd/agent/files/proto"
)

func TestWatchAnswers(t *testing.T) {
	full := errors.New("caller is full")
	for _, c := range []struct {
		name, stdout string
		want         error
		got          string
	}{
		{"changes", `{"type":"ready"}` + "\n" + `{"type":"created","path":"YS9i","dir":true}` + "\n" + `{"type":"missed"}` + "\n", nil, "ready  false|created a/b true|missed  false|"},
		{"half a line", `{"type":"ready"}` + "\n" + `{"type":"cre`, nil, "ready  false|"},
		{"rubbish", "x\n", ErrProtocol, ""},
		{"unknown", `{"type":"x"}` + "\n", ErrProtocol, ""},
		{"ready with a path", `{"type":"ready","path":"YQ=="}` + "\n", ErrProtocol, ""},
		{"above", `{"type":"created","path":"Li4vYQ=="}` + "\n", ErrProtocol, ""}, // ../a
		{"absolute", `{"type":"created","path":"L2E="}` + "\n", ErrProtocol, ""},  // /a
		{"long", strings.Repeat("x", proto.MaxInfo+1), ErrProtocol, ""},
		{"caller", `{"type":"missed"}` + "\n", full, "missed  false|"},
	} {
		b, got := &box{stdout: c.stdout, stderr: "{}", result: exited(0)}, ""
		err := Watch(t.Context(), b, Options{}, "d", WatchOptions{Recursive: true, Globs: []string{"*"}}, func(change Change) error {
			got += fmt.Sprintf("%s %s %v|", change.Type, change.Path, change.Dir)
			if c.want == full {
				return full
			}
			return nil
		})
		if !errors.Is(err, c.want) || got != c.got {
			t.Errorf("%s: %q, %v, want %q, %v", c.name, got, err, c.got, c.want)
		}
		if args := strings.Join(b.cmd.Args, " "); args != `watch d {"recursive":true,"globs":["*"]}` || b.cmd.Timeout != 0 {
			t.Errorf("%s, timeout %v", args, b.cmd.Timeout)
		}
	}
}

// FuzzChanges feeds arbitrary lines of a box, in pieces. Every change that is passed on is below
// the directory, and no more is kept than a line.
func FuzzChanges(f *testing.F) {
	f.Add(`{"type":"ready"}`+"\n"+`{"type":"created","path":"YS9i"}`+"\n", 7)
	f.Add(strings.Repeat("\n", 20), 1)
	f.Fuzz(func(t *testing.T, text string, piece int) {
		piece = max(piece%1000, 1)
		l := &changeLines{each: func(c Change) error {
			if c.Type == "" || strings.HasPrefix(c.Path, "/") || strings.Contains("/"+c.Path+"/", "/../") || strings.Contains(c.Path, "\x00") {
				t.Errorf("%+v", c)
			}
			return nil
		}}
		for len(text) > 0 {
			n := min(piece, len(text))
			if _, err := l.Write([]byte(text[:n])); err != nil {
				if !errors.Is(err, proto.ErrProtocol) || len(err.Error()) > 20000 {
					t.Errorf("%.200v", err)
				}
				return
			}
			text = text[n:]
			if len(l.line) > proto.MaxInfo {
				t.Errorf("%d bytes are kept", len(l.line))
			}
		}
	})
}
