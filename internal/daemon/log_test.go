package daemon

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
)

func TestLinesBeginWithIDs(t *testing.T) {
	var out bytes.Buffer
	logger := NewLogger(&out, "json", slog.LevelInfo)
	logger.Info("none")
	inner := logger.With("session", "s1", "extra", 1)
	inner.Info("some", "request", "r1", "other", true, "box", "")
	inner.With("tenant", "t1").Warn("more", "session", "s2")
	inner.WithGroup("g").Info("grouped", "session", "not an id")
	logger.Debug("hidden")
	want := []map[string]any{
		{"msg": "none", "tenant": nil, "session": nil, "box": nil, "process": nil, "request": nil},
		{"msg": "some", "session": "s1", "request": "r1", "extra": 1.0, "other": true, "tenant": nil, "box": nil, "process": nil},
		{"msg": "more", "session": "s2", "tenant": "t1", "extra": 1.0, "request": nil},
		{"msg": "grouped", "session": "s1", "tenant": nil},
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != len(want) {
		t.Fatalf("%d lines: %s", len(lines), out.String())
	}
	for i, line := range lines {
		got := map[string]any{}
		if err := json.Unmarshal([]byte(line), &got); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		for key, value := range want[i] {
			if got[key] != value {
				t.Errorf("%s: %s is %v, want %v", line, key, got[key], value)
			}
		}
		for _, key := range idKeys {
			if strings.Count(strings.Split(line, `"g":`)[0], `"`+key+`":`) > 1 {
				t.Errorf("%s: want %s once at most", line, key)
			}
		}
	}
}

func TestTextLog(t *testing.T) {
	var out bytes.Buffer
	NewLogger(&out, "text", slog.LevelInfo).Info("hello", "session", "", "n", 2, "box", "b1")
	if want := `msg=hello box=b1 n=2` + "\n"; !strings.HasSuffix(out.String(), want) {
		t.Errorf("%q, want it to end with %q", out.String(), want)
	}
}

func TestPanicIsLogged(t *testing.T) {
	var out bytes.Buffer
	status := 0
	func() {
		defer logPanic(NewLogger(&out, "json", slog.LevelInfo), func(s int) { status = s })
		panic("oh no")
	}()
	if text := out.String(); status != 2 || !strings.Contains(text, "oh no") || !strings.Contains(text, "TestPanicIsLogged") || strings.Count(text, "\n") != 1 {
		t.Errorf("status %d, %s", status, text)
	}
	func() { defer logPanic(nil, nil) }()
}
