package preview

import (
	"net"
	"strings"
	"testing"
)

func testHosts(t testing.TB) Hosts {
	t.Helper()
	h, err := NewHosts("preview.example.com", "default")
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestParseHost(t *testing.T) {
	h := testHosts(t)
	long := strings.Repeat("a", 58)
	for _, c := range []struct {
		host string
		want Target // zero: none
	}{
		{"3000-lab.preview.example.com", Target{"default", "lab", 3000}},
		{"3000-LAB.Preview.Example.COM", Target{"default", "lab", 3000}},
		{"3000-lab.preview.example.com.", Target{"default", "lab", 3000}},
		{"3000-lab.preview.example.com:8443", Target{"default", "lab", 3000}},
		{"3000-lab.preview.example.com.:8443", Target{"default", "lab", 3000}},
		{"3000-lab.acme.preview.example.com", Target{"acme", "lab", 3000}},
		{"3000-a-b--c.preview.example.com", Target{"default", "a-b--c", 3000}},
		{"3000-3001-x.preview.example.com", Target{"default", "3001-x", 3000}},
		{"1-0.preview.example.com", Target{"default", "0", 1}},
		{"65535-a.preview.example.com", Target{"default", "a", 65535}},
		{"3000-" + long + ".preview.example.com", Target{"default", long, 3000}},

		{"3000-a" + long + ".preview.example.com", Target{}},
		{"3000-lab.default.preview.example.com", Target{}}, // a second name, so a second origin
		{"65536-lab.preview.example.com", Target{}},
		{"0-lab.preview.example.com", Target{}},
		{"03000-lab.preview.example.com", Target{}},
		{"+3000-lab.preview.example.com", Target{}},
		{"-lab.preview.example.com", Target{}},
		{"3000-.preview.example.com", Target{}},
		{"3000--lab.preview.example.com", Target{}},
		{"3000-lab-.preview.example.com", Target{}},
		{"3000.preview.example.com", Target{}},
		{"3000-lab_1.preview.example.com", Target{}},
		{"3000-l\u212ab.preview.example.com", Target{}}, // lower case of the Kelvin sign is "k"
		{"3000-läb.preview.example.com", Target{}},
		{"3000-lab.xn--e1a.preview.example.com", Target{}},
		{"3000-lab.a.b.preview.example.com", Target{}},
		{"3000-lab..preview.example.com", Target{}},
		{"3000-lab.preview.example.com..", Target{}},
		{"3000-lab.preview.example.com:", Target{}},
		{"3000-lab.preview.example.com:0", Target{}},
		{"3000-lab.preview.example.com:80:80", Target{}},
		{"3000-lab.preview.example.com:x", Target{}},
		{"3000-lab.preview.example.com@evil", Target{}},
		{"3000-lab.preview.example.com.evil", Target{}},
		{"3000-labpreview.example.com", Target{}},
		{"preview.example.com", Target{}},
		{".preview.example.com", Target{}},
		{"[::1]:80", Target{}},
		{"127.0.0.1", Target{}},
		{"", Target{}},
	} {
		if got, ok := h.Parse(c.host); ok != (c.want != Target{}) || ok && got != c.want {
			t.Errorf("%q: %+v, %v, want %+v", c.host, got, ok, c.want)
		}
	}
}

func TestFormatHost(t *testing.T) {
	h := testHosts(t)
	for _, c := range []struct {
		t    Target
		want string // "": an error
	}{
		{Target{"default", "lab", 80}, "80-lab.preview.example.com"},
		{Target{"acme", "lab", 80}, "80-lab.acme.preview.example.com"},
		{Target{"default", "Lab", 80}, ""},
		{Target{"default", "a.b", 80}, ""},
		{Target{"default", "a:b@c", 80}, ""},
		{Target{"default", "", 80}, ""},
		{Target{"default", "lab", 0}, ""},
		{Target{"default", "lab", 65536}, ""},
		{Target{"a.b", "lab", 80}, ""},
		{Target{"A", "lab", 80}, ""},
		{Target{"", "lab", 80}, ""},
	} {
		if got, err := h.Format(c.t); got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%+v: %q, %v, want %q", c.t, got, err, c.want)
		}
	}
	for _, d := range []string{"", ".", "a..b", "A.b", "a.b.", "-a", strings.Repeat("a.", 61) + "a"} {
		if _, err := NewHosts(d, ""); err == nil {
			t.Errorf("domain %q is valid", d)
		}
	}
}

// FuzzParseHost: whatever is parsed is formatted as the same host.
func FuzzParseHost(f *testing.F) {
	h := testHosts(f)
	f.Add("3000-lab.acme.PREVIEW.example.com.:80")
	f.Fuzz(func(t *testing.T, s string) {
		target, ok := h.Parse(s)
		if !ok {
			return
		}
		name, err := h.Format(target)
		if host, _, e := net.SplitHostPort(s); e == nil {
			s = host
		}
		if err != nil || !strings.EqualFold(name, strings.TrimSuffix(s, ".")) {
			t.Errorf("%q: %+v, then %q, %v", s, target, name, err)
		}
	})
}

// FuzzFormatHost: no two targets have the same name.
func FuzzFormatHost(f *testing.F) {
	h := testHosts(f)
	f.Add("default", "lab", 3000)
	f.Add("acme", "3000-x", 1)
	f.Fuzz(func(t *testing.T, tenant, session string, port int) {
		want := Target{tenant, session, port}
		name, err := h.Format(want)
		if err != nil {
			return
		}
		if got, ok := h.Parse(name); !ok || got != want {
			t.Errorf("%+v: %q, then %+v, %v", want, name, got, ok)
		}
	})
}
