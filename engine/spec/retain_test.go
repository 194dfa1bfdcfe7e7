package spec

import (
	"testing"
	"time"
)

func TestParseRetain(t *testing.T) {
	for text, want := range map[string]time.Duration{"": 0, "none": 0, "forever": Forever, "7d": 168 * time.Hour, "90m": 90 * time.Minute, "1s": time.Second, "366d": MaxTime} {
		if got, err := ParseRetain(text); err != nil || got != want {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"0", "7", "0d", "-1d", "1.5d", "367d", "d", "70000d", "999ms", "-1h", "Forever", "unlimited"} {
		if got, err := ParseRetain(text); err == nil {
			t.Errorf("%q: %v", text, got)
		}
	}
}

func FuzzParseRetain(f *testing.F) {
	f.Add("7d")
	f.Fuzz(func(t *testing.T, text string) {
		if d, err := ParseRetain(text); err == nil && d != 0 && d != Forever && (d < MinRetain || d > MaxTime) {
			t.Errorf("%q: %v", text, d)
		}
	})
}
