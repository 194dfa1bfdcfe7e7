package cli

import (
	"testing"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/flagtext"
)

func TestParseMount(t *testing.T) {
	rw, ro := engine.Mount{Source: "/s", Target: "/t"}, engine.Mount{Source: "/s", Target: "/t", ReadOnly: true}
	for in, want := range map[string]engine.Mount{
		"/s:/t": rw, "/s:/t:rw": rw, "/s:/t:ro": ro,
		"type=bind,source=/s,target=/t":               rw,
		"type=bind,source=/s,target=/t,readonly":      ro,
		"type=bind,src=/s,dst=/t,ro":                  ro,
		"readonly,source=/s,destination=/t,type=bind": ro,
		"source=/s,target=/t,readonly=true":           ro,
		"source=/s,target=/t,readonly=false":          rw,
		`type=bind,"source=/a,b:c","target=/t=1"`:     {Source: "/a,b:c", Target: "/t=1"},
		"/source=x:/t": {Source: "/source=x", Target: "/t"},
		"type=bind,source=/s/../x,target=/t,readonly=1": {Source: "/s/../x", Target: "/t", ReadOnly: true},
	} {
		if got, err := parseMount(in); err != nil || got != want {
			t.Errorf("parseMount(%q) = %+v, %v; want %+v", in, got, err, want)
		}
	}
	for _, in := range []string{
		"", ":", "/s", "/s:", ":/t", "s:/t", "/s:t", "/s:/t:", "/s:/t:rw,z", "/s:/t:ro:ro",
		"type=bind", "type=bind,source=/s", "type=tmpfs,source=/s,target=/t", "source=/s,target=/t,bind-propagation=shared", "source=/s,target=/t,readonly=maybe",
		"source=/s,target=/t,", `source="/s,target=/t`, "source=/s,target=/t\nsource=/x", "source=s,target=/t", "source=/s,target=/", "source=/s\x00,target=/t",
	} {
		if got, err := parseMount(in); err == nil {
			t.Errorf("parseMount(%q) = %+v, want an error", in, got)
		}
	}
}

// FuzzParseMount: a mount that is accepted is valid.
func FuzzParseMount(f *testing.F) {
	for _, seed := range []string{"/s:/t", "/s:/t:ro", "type=bind,source=/s,target=/t,readonly", `"source=/a,b",target=/t`, "ro", ","} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		m, err := parseMount(s)
		if err == nil && m.Validate() != nil {
			t.Fatalf("parseMount(%q) = %+v, which is invalid: %v", s, m, m.Validate())
		}
	})
}

func TestParseUser(t *testing.T) {
	for in, want := range map[string]engine.User{"0": {}, "7": {UID: 7, GID: 7}, "7:0": {UID: 7}, "65534:1": {UID: 65534, GID: 1}} {
		if got, err := flagtext.User(in); err != nil || got != want {
			t.Errorf("flagtext.User(%q) = %+v, %v; want %+v", in, got, err, want)
		}
	}
	for _, in := range []string{"", ":", "7:", ":7", "root", "+7", "-7", "0x7", "7 ", "7:7:7", "99999999999"} {
		if got, err := flagtext.User(in); err == nil {
			t.Errorf("flagtext.User(%q) = %+v, want an error", in, got)
		}
	}
}
