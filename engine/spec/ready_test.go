package spec

import (
	"strings"
	"testing"
	"time"
)

func TestReady(t *testing.T) {
	for name, r := range map[string]Ready{
		"line":    {Line: "Listening on"},
		"port":    {Port: 65535, LiveEvery: Duration(time.Second)},
		"http":    {HTTP: "8080/health?x=1", Timeout: Duration(time.Hour)},
		"root":    {HTTP: "80"},
		"command": {Command: []string{"test", "-e", "/tmp/up"}},
	} {
		if err := r.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for field, list := range map[string][]Ready{
		"ready":            {{}, {Timeout: 1}, {Line: "x", Port: 1}, {HTTP: "1/", Command: []string{"x"}}},
		"ready.line":       {{Line: "a\nb"}, {Line: "\xff"}, {Line: strings.Repeat("x", 257)}},
		"ready.port":       {{Port: -1}, {Port: 65536}},
		"ready.http":       {{HTTP: "/health"}, {HTTP: "0/"}, {HTTP: "65536/"}, {HTTP: "80/a b"}, {HTTP: "80/a\r\nHost: x"}, {HTTP: "80/ä"}, {HTTP: "80/" + strings.Repeat("x", 1025)}},
		"ready.command":    {{Command: []string{""}}, {Command: []string{"a", "\x00"}}},
		"ready.timeout":    {{Port: 1, Timeout: -1}, {Port: 1, Timeout: Duration(2 * time.Hour)}},
		"ready.live_every": {{Port: 1, LiveEvery: 1}, {Port: 1, LiveEvery: -1}, {Line: "x", LiveEvery: Duration(time.Minute)}},
	} {
		for _, r := range list {
			if err, ok := r.Validate().(*FieldError); !ok || err.Field != field {
				t.Errorf("%+v: %v, want an error of %s", r, err, field)
			}
		}
	}
}

func TestParseRestart(t *testing.T) {
	for text, want := range map[string]int{"": 0, "no": 0, "on-failure": 5, "on-failure:1": 1, "on-failure:100": 100} {
		if most, err := ParseRestart(text); most != want || err != nil {
			t.Errorf("%q: %d, %v", text, most, err)
		}
	}
	for _, text := range []string{"always", "on-failure:", "on-failure:0", "on-failure:-1", "on-failure:101", "on-failure:x", "no:1"} {
		if _, err := ParseRestart(text); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
}

// Whatever the text, an address that is accepted fits into the first line of a request.
func FuzzReadyAddress(f *testing.F) {
	for _, text := range []string{"8080/health", "80", "1/ ", "65535//", "+1/x", "1/\r\n"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		port, path, err := (&Ready{HTTP: text}).Address()
		if err == nil && (port < 1 || port > 65535 || path[0] != '/' || strings.ContainsAny(path, " \r\n\x00")) {
			t.Errorf("%q is port %d, path %q", text, port, path)
		}
	})
}
