package leftover

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/boxd/boxd/internal/testutil"
)

func TestMain(m *testing.M) { testutil.MainUnprivileged(m) }

// The pauses between tries grow, up to an hour.
func TestPauses(t *testing.T) {
	state := t.TempDir()
	busy := map[string]error{"b1": errors.New("box \"b1\": busy")}
	for try, want := range []time.Duration{time.Minute, 2 * time.Minute, 4 * time.Minute, 8 * time.Minute, 16 * time.Minute, 32 * time.Minute, time.Hour, time.Hour} {
		before := time.Now()
		if err := Note(state, "run-a", busy); err != nil {
			t.Fatal(err)
		}
		r := Read(state, "run-a")
		if r == nil || r.Tries != try+1 || r.Reasons["b1"] != `box "b1": busy` || r.Due() || r.Next.Before(before.Add(want)) || r.Next.After(time.Now().Add(want)) {
			t.Errorf("try %d: %+v, want a pause of %v", try+1, r, want)
		}
	}
	all, err := List(state)
	if err != nil || len(all) != 1 || all[0].Instance != "run-a" || all[0].Tries != 8 {
		t.Errorf("%v, %v", all, err)
	}
	for range 2 { // nothing to remove is no error
		if err := Note(state, "run-a", nil); err != nil {
			t.Error(err)
		}
	}
	if left, err := os.ReadDir(state); len(left) > 0 || err != nil {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestForget(t *testing.T) {
	state := t.TempDir()
	if err := Forget(state, "run-a", "b1"); err != nil {
		t.Error(err)
	}
	if err := Note(state, "run-a", map[string]error{"b1": errors.New("busy"), "b2": errors.New("busy")}); err != nil {
		t.Fatal(err)
	}
	for _, box := range []string{"b1", "other"} {
		if err := Forget(state, "run-a", box); err != nil {
			t.Error(err)
		}
	}
	if r := Read(state, "run-a"); r == nil || len(r.Reasons) != 1 || r.Reasons["b2"] == "" || r.Tries != 1 {
		t.Errorf("%+v", r)
	}
	if err := Forget(state, "run-a", "b2"); err != nil || Read(state, "run-a") != nil {
		t.Error("the record of nothing is there", err)
	}
}

func TestDue(t *testing.T) {
	for wait, want := range map[time.Duration]bool{-time.Second: true, time.Second: false, 59 * time.Minute: false, 100 * time.Hour: true} {
		if r := (&Record{Next: time.Now().Add(wait)}); r.Due() != want {
			t.Errorf("due %v from now: %v, want %v", wait, r.Due(), want)
		}
	}
}

// A damaged record counts as missing.
func TestDamaged(t *testing.T) {
	state := t.TempDir()
	for _, text := range []string{"", "{", `{"tries":"x"}`, "\x00"} {
		if err := os.WriteFile(filepath.Join(state, "stuck-run-a"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if r := Read(state, "run-a"); r != nil {
			t.Errorf("%q: %+v", text, r)
		}
	}
}

func TestLine(t *testing.T) {
	for _, text := range []string{"busy", strings.Repeat("é", 500), "a\nb\n", strings.Repeat("\xff", 300)} {
		for _, boxes := range []int{1, 2, 3000} {
			errs := map[string]error{}
			for i := range boxes {
				errs[strings.Repeat("b", i+1)] = errors.New("first: " + text)
			}
			line := Line(errs)
			if len(line) > 200 || !utf8.ValidString(line) || strings.Contains(line, "\n") || !strings.Contains(line, "first: ") || !strings.Contains(line, "boxd doctor") {
				t.Errorf("%d boxes: %q, %d bytes", boxes, line, len(line))
			}
		}
	}
	if line := Line(nil); line != "" {
		t.Errorf("nothing: %q", line)
	}
}
