package apitypes

import (
	"encoding/json"
	"errors"
	"testing"
	"time"
)

func TestDuration(t *testing.T) {
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

func TestSize(t *testing.T) {
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

func TestOutput(t *testing.T) {
	r := ExecResult{Stdout: "text", StderrBase64: []byte{0xff}}
	if string(r.Out()) != "text" || string(r.Err()) != "\xff" {
		t.Errorf("%q, %q", r.Out(), r.Err())
	}
	if b, err := json.Marshal(ExecResult{}); err != nil || string(b[:18]) != `{"exit_code":null,` {
		t.Errorf("%s, %v", b, err)
	}
}
