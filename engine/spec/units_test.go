package spec

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"
)

func TestDurationJSON(t *testing.T) {
	for text, want := range map[string]time.Duration{
		`1`: time.Second, `0`: 0, `null`: 0, `0.5`: 500 * time.Millisecond, `1e-9`: 1, `"1m30s"`: 90 * time.Second, `"0s"`: 0, `-1`: -time.Second, `3153600000`: maxSeconds * time.Second,
	} {
		var d Duration
		if err := json.Unmarshal([]byte(text), &d); err != nil || d.D() != want {
			t.Errorf("%s: %v, %v", text, d.D(), err)
		}
	}
	for _, text := range []string{`-2`, `"-1s"`, `"1"`, `""`, `"soon"`, `1e300`, `3153600001`, `true`, `{}`, `[1]`, `"9999999h"`} {
		var d Duration
		if err := json.Unmarshal([]byte(text), &d); !errors.As(err, new(*json.UnmarshalTypeError)) {
			t.Errorf("%s: %v, %v", text, d.D(), err)
		}
	}
	for d, want := range map[time.Duration]string{0: "0", time.Second: "1", 1500 * time.Microsecond: "0.0015", time.Hour: "3600", -time.Second: "-1"} {
		if b, err := json.Marshal(Duration(d)); err != nil || string(b) != want {
			t.Errorf("%v: %s, %v", d, b, err)
		}
	}
}

func TestSizeJSON(t *testing.T) {
	for text, want := range map[string]Size{`1`: 1, `null`: 0, `-1`: -1, `"512M"`: 512 << 20, `"1.5GiB"`: 3 << 29, `"7"`: 7} {
		var s Size
		if err := json.Unmarshal([]byte(text), &s); err != nil || s != want {
			t.Errorf("%s: %d, %v", text, s, err)
		}
	}
	for _, text := range []string{`1.5`, `1e3`, `"-1"`, `"much"`, `""`, `true`, `{}`, `99999999999999999999`} {
		var s Size
		if err := json.Unmarshal([]byte(text), &s); !errors.As(err, new(*json.UnmarshalTypeError)) {
			t.Errorf("%s: %d, %v", text, s, err)
		}
	}
}

func TestUnitsText(t *testing.T) {
	for text, want := range map[string]Size{"0": 0, "65536": 65536, "512M": 512 << 20, "1.5GiB": 3 << 29, "-1": Unlimited, "unlimited": Unlimited} {
		var got Size
		if err := got.UnmarshalText([]byte(text)); err != nil || got != want {
			t.Errorf("size %s: %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"-2", "1.5", "1e3", "", "M", "512X", "1 000", "9999999999999999999999", "0x10", "\x00"} {
		var got Size
		if err := got.UnmarshalText([]byte(text)); !errors.Is(err, ErrInvalid) || strings.Contains(err.Error(), "\n") {
			t.Errorf("size %q: %d, %v; want a FieldError", text, got, err)
		}
	}
	for text, want := range map[string]time.Duration{
		"0": 0, "30": 30 * time.Second, "1.5": 1500 * time.Millisecond, "30s": 30 * time.Second, "1h30m": 90 * time.Minute, "-1": -time.Second, "1e3": 1000 * time.Second,
	} {
		var got Duration
		if err := got.UnmarshalText([]byte(text)); err != nil || got.D() != want {
			t.Errorf("duration %s: %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "soon", "5 minutes", "1e300", "-1e300", "NaN", "Inf", "9223372037", "1d"} {
		var got Duration
		if err := got.UnmarshalText([]byte(text)); !errors.Is(err, ErrInvalid) || strings.Contains(err.Error(), "\n") {
			t.Errorf("duration %q: %v, %v; want a FieldError", text, got, err)
		}
	}
}
