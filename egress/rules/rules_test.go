package rules

import (
	"encoding/json"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/boxd/boxd/engine/spec"
)

func compile(t *testing.T, r Rules) *Set {
	t.Helper()
	s, err := Compile(r)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestDecide(t *testing.T) {
	lists := Rules{
		Allow: []string{"pypi.org", "*.pythonhosted.org", "git.example:22", "ports.example:8000-8010", "10.1.0.0/16:5432", "192.0.2.7", "[2001:db8::/32]:443", "bücher.example", "0.0.0.0/0:81", "mixed.example", "mixed.example:443"},
		Deny:  []string{"bad.pythonhosted.org", "*.evil.example", "198.41.0.0/16", "half.example:443"},
	}
	open := lists
	open.Public = true
	for _, c := range []struct {
		target string
		rules  Rules
		want   string // part of the rule; with "!" in front it is denied
	}{
		{"pypi.org:443", lists, "pypi.org"},
		{"pypi.org:80", lists, "pypi.org"},
		{"PyPI.ORG.:443", lists, "pypi.org"},
		{"pypi.org:22", lists, "!default"},
		{"pypi.org:8443", lists, "!default"},
		{"xpypi.org:443", lists, "!default"},
		{"pypi.org.evil.example:443", lists, "!evil"},
		{"www.pypi.org:443", lists, "!default"},
		{"files.pythonhosted.org:443", lists, "pythonhosted"},
		{"a.b.pythonhosted.org:443", lists, "pythonhosted"},
		{"pythonhosted.org:443", lists, "!default"},
		{"xpythonhosted.org:443", lists, "!default"},
		{"bad.pythonhosted.org:443", lists, "!bad.pythonhosted"},
		{"git.example:22", lists, "git.example:22"},
		{"git.example:443", lists, "!default"},
		{"ports.example:8005", lists, "8000-8010"},
		{"ports.example:8011", lists, "!default"},
		{"10.1.2.3:5432", lists, "10.1.0.0/16"},
		{"10.1.2.3:443", lists, "!address"},
		{"10.2.2.3:5432", lists, "!address"},
		{"[::ffff:10.1.2.3]:5432", lists, "10.1.0.0/16"},
		{"192.0.2.7:443", lists, "192.0.2.7"},
		{"[2001:db8::5]:443", lists, "2001:db8"},
		{"[2001:db9::5]:443", lists, "!default"},
		{"xn--bcher-kva.example:443", lists, "bücher"},
		{"127.0.0.1:81", lists, "!address"}, // 0.0.0.0/0 opens no special range
		{"169.254.169.254:81", lists, "!address"},
		{"93.184.216.34:81", lists, "0.0.0.0/0"},
		{"pypi.org:25", open, "!smtp"},
		{"mail.example:465", open, "!smtp"},
		{"93.184.216.34:587", open, "!smtp"},
		{"any.example:443", open, "public"},
		{"any.example:9999", open, "public"},
		{"x.evil.example:443", open, "!evil"},
		{"evil.example:443", open, "public"},
		{"half.example:80", open, "public"},
		{"half.example:443", open, "!half"},
		{"198.41.0.4:53", open, "!198.41"},
		{"8.8.8.8:53", open, "public"},
		{"[2606:4700::1]:443", open, "public"},
		{"localhost:443", open, "!default"},
		{"metadata:80", open, "!default"},
		{"metadata.google.internal:80", open, "!default"},
		{"printer.local:80", open, "!default"},
		{"mixed.example:443", lists, "mixed.example:443"},
	} {
		target, err := ParseAuthority(c.target, 0)
		if err != nil {
			t.Errorf("%s: %v", c.target, err)
			continue
		}
		v := compile(t, c.rules).Decide(target, Surroundings{})
		want, denied := strings.CutPrefix(c.want, "!")
		if v.Allowed == denied || !strings.Contains(v.Rule, want) || v.Allowed == (v.Reason != "") {
			t.Errorf("%s: %+v, want %s", c.target, v, c.want)
		}
	}
}

// TestAny: raw bytes need a rule that names the port.
func TestAny(t *testing.T) {
	s := compile(t, Rules{Allow: []string{"a.example", "b.example:443", "a.example:22"}, Public: true})
	for target, any := range map[string]bool{"a.example:443": false, "a.example:22": true, "b.example:443": true, "c.example:443": false, "c.example:80": false, "c.example:5432": true, "9.9.9.9:443": false} {
		a, _ := ParseAuthority(target, 0)
		if v := s.Decide(a, Surroundings{}); !v.Allowed || v.Any != any {
			t.Errorf("%s: %+v", target, v)
		}
	}
}

// TestAddresses: what a name must not lead to.
func TestAddresses(t *testing.T) {
	own := netip.MustParseAddr("93.184.216.1")
	h := Surroundings{Own: func() []netip.Addr { return []netip.Addr{own} }, Never: func(a netip.AddrPort) bool { return a.Port() == 7777 }}
	s := compile(t, Rules{Public: true, Allow: []string{"10.0.0.0/8", "192.168.1.0/24:1-65535", "93.184.216.0/24", "64:ff9b::/96", "fd00:1::/32", "127.0.0.0/8:7000-8000"}, Deny: []string{"4.4.4.0/24"}})
	for addr, allowed := range map[string]bool{
		"93.184.216.34:443": true, "93.184.216.1:443": false, "10.9.9.9:443": true, "10.9.9.9:444": false, "192.168.1.1:22": true, "192.168.2.1:22": false,
		"127.0.0.1:80": false, "127.0.0.1:7001": true, "127.0.0.1:7777": false, "93.184.216.34:7777": false, "127.8.9.1:80": false, "0.0.0.0:80": false, "0.1.2.3:80": false,
		"169.254.169.254:80": false, "169.254.1.1:80": false, "100.64.0.1:80": false, "100.100.100.200:80": false, "168.63.129.16:80": false,
		"172.16.0.1:80": false, "172.31.255.255:80": false, "172.32.0.1:80": true, "192.0.0.1:80": false, "192.0.2.1:80": false, "198.18.0.1:80": false, "198.51.100.1:80": false,
		"203.0.113.1:80": false, "192.88.99.1:80": false, "224.0.0.1:80": false, "239.255.255.250:80": false, "240.0.0.1:80": false, "255.255.255.255:80": false,
		"[::1]:80": false, "[::]:80": false, "[::ffff:127.0.0.1]:80": false, "[::ffff:169.254.169.254]:80": false, "[::7f00:1]:80": false, "[fe80::1]:80": false, "[fec0::1]:80": false,
		"[fc00::1]:80": false, "[fd00:1::1]:80": true, "[fd00:ec2::254]:80": false, "[ff02::1]:80": false, "[2001:db8::1]:80": false, "[3fff::1]:80": false,
		"[2002:7f00:1::]:80": false, "[2002:a00:1::]:80": false, "[2001::1]:80": false, "[64:ff9b:1::1]:80": false, "[100::1]:80": false, "[4000::1]:80": false, "[5f00::1]:80": false,
		"[64:ff9b::5db8:d822]:443": true, "[64:ff9b::7f00:1]:80": false, "[64:ff9b::a9fe:a9fe]:80": false, "[64:ff9b::404:404]:80": false, "4.4.4.4:80": false,
		"[2606:4700::1]:80": true, "[2a00:1450::1]:443": true,
	} {
		if v := s.Address(netip.MustParseAddrPort(addr), true, h); v.Allowed != allowed {
			t.Errorf("%s: %+v", addr, v)
		}
	}
	if v := s.Address(netip.MustParseAddrPort("[fe80::1%eth0]:80"), true, h); v.Allowed {
		t.Error("an address with a zone is allowed")
	}
	exact := compile(t, Rules{Allow: []string{"93.184.216.1"}})
	if v := exact.Address(netip.AddrPortFrom(own, 443), true, h); !v.Allowed {
		t.Errorf("an entry for exactly the host's address does not open it: %+v", v)
	}
	// Every special range is refused under public alone, at both of its ends.
	bare := compile(t, Rules{Public: true})
	for _, c := range classes {
		for _, a := range []netip.Addr{c.prefix.Addr(), last(c.prefix)} {
			if v := bare.Address(netip.AddrPortFrom(a, 443), true, Surroundings{}); v.Allowed {
				t.Errorf("%s of %s is allowed", a, c.prefix)
			}
		}
	}
}

// TestTranslated: the IPv4 address inside decides about a NAT64 address, whichever way the IPv4 address is
// decided, and about no address of another translator.
func TestTranslated(t *testing.T) {
	own, daemon, routed := netip.MustParseAddr("93.184.216.1"), netip.MustParseAddrPort("93.184.216.2:7777"), netip.MustParseAddr("64:ff9b::5db8:d805") // 93.184.216.5
	h := Surroundings{Own: func() []netip.Addr { return []netip.Addr{own, routed} }, Never: func(a netip.AddrPort) bool { return a == daemon }}
	nat64Of := func(addr netip.Addr) netip.Addr {
		b := nat64.Addr().As16()
		v4 := addr.As4()
		copy(b[12:], v4[:])
		return netip.AddrFrom16(b)
	}
	addrs := []string{"8.8.8.8:53", "8.8.8.8:443", "8.8.8.8:25", "4.4.4.4:443", "4.4.5.4:443", "93.184.216.1:443", "93.184.216.2:7777", "93.184.216.2:7778", "10.1.2.3:5432", "10.1.2.3:443", "10.2.2.3:5432", "198.51.100.7:443"}
	for _, c := range classes {
		if c.prefix.Addr().Is4() {
			addrs = append(addrs, netip.AddrPortFrom(c.prefix.Addr(), 443).String(), netip.AddrPortFrom(last(c.prefix), 443).String())
		}
	}
	for _, r := range []Rules{
		{},
		{Public: true},
		{Public: true, Deny: []string{"4.4.4.0/24", "8.8.8.8:53"}},
		{Public: true, MoreDeny: [][]string{{"8.8.0.0/16"}}},
		{Public: true, Allow: []string{"10.1.0.0/16:5432", "198.51.100.7", "93.184.216.1", "93.184.216.2:7777", "169.254.169.254"}, Deny: []string{"10.1.2.0/25"}},
		{Public: true, Allow: []string{"10.1.0.0/16:5432", "198.51.100.7", "93.184.216.1", "93.184.216.2:7777", "127.0.0.0/8"}},
		{Allow: []string{"0.0.0.0/0:1-65535", "8.8.8.8:443"}},
		{Public: true, Allow: []string{"10.0.0.0/8:1-65535"}, Only: [][]string{{"10.1.0.0/16:5432", "8.8.8.8"}}},
	} {
		s := compile(t, r)
		for _, text := range addrs {
			ap := netip.MustParseAddrPort(text)
			for _, byName := range []bool{false, true} {
				want, got := s.Address(ap, byName, h), s.Address(netip.AddrPortFrom(nat64Of(ap.Addr()), ap.Port()), byName, h)
				if got.Allowed != want.Allowed || got.Any != want.Any || got.Rule != want.Rule {
					t.Errorf("%+v: %s, by name %t: %+v; inside NAT64: %+v", r, text, byName, want, got)
				}
			}
		}
	}
	for _, c := range []struct {
		rules  Rules
		target string
		want   bool
	}{
		{Rules{Public: true}, "[64:ff9b::808:808]:443", true},
		{Rules{Public: true}, "[64:ff9b::a00:5]:443", false},
		{Rules{Public: true}, "[64:ff9b::1:808:808]:443", false}, // not in the /96
		{Rules{Public: true}, "[64:ff9b:1::808:808]:443", false},
		{Rules{Public: true}, "[2002:808:808::1]:443", false},
		{Rules{Public: true, Allow: []string{"8.8.8.8"}}, "[2002:808:808::1]:443", false},
		{Rules{Public: true, Allow: []string{"8.8.8.8"}}, "[64:ff9b:1::808:808]:443", false},
		{Rules{Allow: []string{"2002:808::/32"}}, "[2002:808:808::1]:443", true},
		{Rules{Allow: []string{"2002::/16"}}, "[2002:a00:5::1]:443", false},
		{Rules{Allow: []string{"2002::/16"}, Deny: []string{"8.8.8.8"}}, "[2002:808:808::1]:443", false},
		{Rules{Allow: []string{"2002::/16"}, Only: [][]string{{"8.8.8.8"}}}, "[2002:808:808::1]:443", false}, // another host than 8.8.8.8
		{Rules{Allow: []string{"[2002::/16]:7777"}}, "[2002:5db8:d802::1]:7777", false},
		{Rules{Allow: []string{"64:ff9b::808:808"}}, "[64:ff9b::808:808]:443", true}, // entries of IPv6
		{Rules{Allow: []string{"64:ff9b::/96"}}, "[64:ff9b::808:808]:443", true},
		{Rules{Allow: []string{"64:ff9b::a00:5", "64:ff9b::a00:0/104", "64:ff9b::/96", "::/0"}}, "[64:ff9b::a00:5]:443", false},
		{Rules{Public: true, Deny: []string{"64:ff9b::/96"}}, "[64:ff9b::808:808]:443", false},
		{Rules{Public: true, Deny: []string{"64:ff9b::808:0/112"}}, "[64:ff9b::808:808]:443", false},
		{Rules{Public: true, Deny: []string{"64:ff9b::808:0/112"}}, "8.8.8.8:443", true},
		{Rules{Public: true, Allow: []string{"93.184.216.5"}}, "[64:ff9b::5db8:d805]:443", false}, // the host's own
		{Rules{Public: true, Allow: []string{"64:ff9b::5db8:d805"}}, "[64:ff9b::5db8:d805]:443", true},
		{Rules{Public: true, Allow: []string{"64:ff9b::5db8:d805"}, Deny: []string{"93.184.216.5"}}, "[64:ff9b::5db8:d805]:443", false},
	} {
		target, err := ParseAuthority(c.target, 0)
		if err != nil {
			t.Fatal(err)
		}
		if v := compile(t, c.rules).Decide(target, h); v.Allowed != c.want {
			t.Errorf("%+v: %s: %+v", c.rules, c.target, v)
		}
	}
}

func last(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < 8*len(b); i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

func TestParseAuthority(t *testing.T) {
	for text, want := range map[string]string{
		"Example.COM:443": "example.com:443", "example.com.:1": "example.com:1", "1.2.3.4:80": "1.2.3.4:80", "[::1]:80": "[::1]:80", "[::ffff:1.2.3.4]:80": "1.2.3.4:80",
		"a_b.example:80": "a_b.example:80", "xn--bcher-kva.example:80": "xn--bcher-kva.example:80", "x:65535": "x:65535", "0x7f.example:80": "0x7f.example:80",
	} {
		if got, err := ParseAuthority(text, 0); err != nil || got.String() != want {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
	for _, text := range []string{"", ":", ":80", "a", "a:", "a:0", "a:65536", "a:080", "a:+80", "a:8 0", "a: 80", "a:80:80", "user@a:80", "u:p@a:80", "a/b:80", "a%2eb:80", "a..b:80", ".a:80", "-a:80", "a-:80", "..:80",
		"127.1:80", "2130706433:80", "0x7f000001:80", "0x7f.0.0.1:80", "0177.0.0.1:80", "127.0.0.1.:80", "127.0.0:80", "1.2.3.4.5:80", "256.1.1.1:80", "01.2.3.4:80", "1.2.3.0x4:80", "1.2.3.4/8:80", "a.1:80", "a.0x:80",
		"::1:80", "[::1:80", "::1]:80", "[::1%eth0]:80", "[1.2.3.4]:80", "[a]:80", "[]:80", "[::1]80", "[::1]x:80", "bücher.example:80", "１２７.0.0.1:80", "pypi。org:80", "a\x00b:80", "a\nb:80", "a b:80", "*.a:80",
		"xn--:80", "xn--a.example:80", "xn--bcher-kvaa.xn--:80", strings.Repeat("a", 64) + ".example:80", strings.Repeat("a.", 127) + "aa:80"} {
		if got, err := ParseAuthority(text, 0); err == nil {
			t.Errorf("%q: %+v", text, got)
		}
	}
	if got, err := ParseAuthority("a.example", 80); err != nil || got.Port != 80 {
		t.Errorf("%v %v", got, err)
	}
}

func TestValidate(t *testing.T) {
	secret := Source{Env: "X"}
	for _, c := range []struct {
		field string
		rules Rules
	}{
		{"allow[0]", Rules{Allow: []string{""}}}, {"allow[1]", Rules{Allow: []string{"a.example", "*"}}}, {"allow[0]", Rules{Allow: []string{"*:22"}}}, {"allow[0]", Rules{Allow: []string{"a.*.example"}}},
		{"allow[0]", Rules{Allow: []string{"*a.example"}}}, {"allow[0]", Rules{Allow: []string{"10.0.0.1/8"}}}, {"allow[0]", Rules{Allow: []string{"10.0.0.0/33"}}}, {"allow[0]", Rules{Allow: []string{"127.1"}}},
		{"allow[0]", Rules{Allow: []string{"0x7f000001"}}}, {"allow[0]", Rules{Allow: []string{"a.example:"}}}, {"allow[0]", Rules{Allow: []string{"a.example:0"}}}, {"allow[0]", Rules{Allow: []string{"a.example:9-8"}}},
		{"allow[0]", Rules{Allow: []string{"a.example:1-70000"}}}, {"allow[0]", Rules{Allow: []string{"http://a.example"}}}, {"allow[0]", Rules{Allow: []string{"a.example/x"}}}, {"allow[0]", Rules{Allow: []string{"[::1"}}},
		{"allow[0]", Rules{Allow: []string{"[1.2.3.4]:80"}}}, {"allow[0]", Rules{Allow: []string{"[::1]:"}}}, {"allow[0]", Rules{Allow: []string{"fe80::1%eth0"}}}, {"allow[0]", Rules{Allow: []string{"::ffff:0:0/96"}}},
		{"deny[0]", Rules{Deny: []string{"*."}}}, {"allow", Rules{Allow: make([]string, 1001)}}, {"allow[0]", Rules{Allow: []string{strings.Repeat("a", 400)}}},
		{"upstream", Rules{Upstream: "https://p:1"}}, {"upstream", Rules{Upstream: "http://p"}}, {"upstream", Rules{Upstream: "http://u:pw@p:1"}}, {"upstream", Rules{Upstream: "http://p:1/x"}}, {"upstream", Rules{Upstream: "socks5://127.1:1"}},
		{"upstream_login", Rules{UpstreamLogin: &secret}}, {"upstream_login", Rules{Upstream: "http://p:1", UpstreamLogin: &Source{}}},
		{"limits.connections", Rules{Limits: Limits{Connections: -1}}}, {"limits.connections", Rules{Limits: Limits{Connections: 1 << 20}}}, {"limits.bytes", Rules{Limits: Limits{Bytes: -1}}},
		{"limits.bandwidth", Rules{Limits: Limits{Bandwidth: 10}}}, {"limits.idle", Rules{Limits: Limits{Idle: 1}}},
		{"inject[0].host", Rules{Inject: []Inject{{"*.a.example", "X", secret}}}}, {"inject[0].host", Rules{Inject: []Inject{{"10.0.0.1", "X", secret}}}}, {"inject[0].host", Rules{Inject: []Inject{{"a.example:80", "X", secret}}}},
		{"inject[0].header", Rules{Inject: []Inject{{"a.example", "", secret}}}}, {"inject[0].header", Rules{Inject: []Inject{{"a.example", "X\r\nY", secret}}}}, {"inject[0].header", Rules{Inject: []Inject{{"a.example", "Host", secret}}}},
		{"inject[0].value_from", Rules{Inject: []Inject{{"a.example", "X", Source{}}}}}, {"inject[0].value_from", Rules{Inject: []Inject{{"a.example", "X", Source{"/a", "B"}}}}}, {"inject[0].value_from.file", Rules{Inject: []Inject{{"a.example", "X", Source{File: "a"}}}}},
		{"inject[1].header", Rules{Inject: []Inject{{"a.example", "X", secret}, {"A.example", "x", secret}}}}, {"inject[1].host", Rules{Inject: []Inject{{"a.example", "X", secret}, {"a.example:8443", "Y", secret}}}},
	} {
		err := c.rules.Validate()
		bad, ok := errors.AsType[*spec.FieldError](err)
		if !ok || bad.Field != c.field || strings.Contains(err.Error(), "pw") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%+v: %v, want one about %s", c.rules, err, c.field)
		}
	}
	good := `{"allow":["a.example","[2001:db8::/32]:443","2001:db8::1"],"deny":["*.b.example:1-2"],"public":true,"upstream":"socks5://10.0.0.1:1080","upstream_login":{"file":"/l"},` +
		`"limits":{"connections":5,"bytes":"1G","bandwidth":"1M","idle":"1m"},"inject":[{"host":"a.example","header":"Authorization","value_from":{"env":"K"}}]}`
	var r Rules
	if err := json.Unmarshal([]byte(good), &r); err != nil {
		t.Fatal(err)
	}
	if err := r.Validate(); err != nil {
		t.Error(err)
	}
}

func FuzzAuthority(f *testing.F) {
	for _, s := range []string{"a.example:80", "[::1]:80", "0x7f.1:1", "xn--a:1", "1.2.3.4:5", "a\xff:1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := ParseAuthority(s, 0)
		if err != nil {
			return
		}
		if (got.Name == "") == !got.Addr.IsValid() || got.Port == 0 || got.Addr.Is4In6() || got.Addr.Zone() != "" {
			t.Fatalf("%q: %+v", s, got)
		}
		again, err := ParseAuthority(got.String(), 0)
		if err != nil || again != got {
			t.Fatalf("%q: %+v, and its text %q: %+v, %v", s, got, got, again, err)
		}
		if strings.ContainsAny(got.String(), " \t\r\n@/\\%?#\x00") {
			t.Fatalf("%q: %q", s, got)
		}
	})
}

func FuzzRules(f *testing.F) {
	for _, s := range []string{"a.example", "*.a:1-2", "10.0.0.0/8", "[::/0]:443", "::/0", "[::1]"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		set, err := Compile(Rules{Allow: []string{s}})
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Fatal(err)
			}
			return
		}
		for _, ap := range []string{"127.0.0.1:25", "169.254.169.254:587", "[::1]:465"} {
			if v := set.Decide(Target{Addr: netip.MustParseAddrPort(ap).Addr(), Port: netip.MustParseAddrPort(ap).Port()}, Surroundings{}); v.Allowed {
				t.Fatalf("%q allows SMTP", s)
			}
		}
		if strings.Contains(s, "/0") && set.Address(netip.MustParseAddrPort("127.0.0.1:80"), false, Surroundings{}).Allowed {
			t.Fatalf("%q opens loopback", s)
		}
	})
}

// TestOnly: a list of Only takes away from what is allowed, by name and by address, and adds nothing.
func TestOnly(t *testing.T) {
	all := Rules{Public: true, Allow: []string{"10.0.0.0/8", "db.example:5432", "inner.example", "a.example:443"}}
	for _, c := range []struct {
		only    [][]string
		target  string
		allowed bool
		any     bool
	}{
		{nil, "x.example:443", true, false},
		{[][]string{{"*.example"}}, "x.example:443", true, false},
		{[][]string{{"*.example"}}, "example:443", false, false},
		{[][]string{{"*.example"}}, "x.test:443", false, false},
		{[][]string{{"*.example"}}, "x.example:22", false, false},
		{[][]string{{"*.example:22"}}, "x.example:22", true, true},
		{[][]string{{"*.example:1-65535"}}, "x.example:443", true, false}, // the profile's check of TLS stays
		{[][]string{{"a.example"}}, "a.example:443", true, false},         // as does the session's own
		{[][]string{{"a.example:443"}}, "a.example:443", true, true},
		{[][]string{{"db.example"}}, "db.example:5432", false, false},
		{[][]string{{"*.example"}, {"x.example"}}, "x.example:443", true, false},
		{[][]string{{"*.example"}, {"x.example"}}, "y.example:443", false, false},
		{[][]string{{"*.example"}, {}}, "x.example:443", false, false},
		{[][]string{{"*.example"}}, "10.0.0.1:80", false, false},
		{[][]string{{"10.0.0.0/16"}}, "10.0.0.1:80", true, false},
		{[][]string{{"10.0.0.0/16"}}, "10.1.0.1:80", false, false},
		{[][]string{{"192.168.0.0/16"}}, "192.168.0.1:80", false, false}, // which the profile does not open
		{[][]string{{"x.example:25"}}, "x.example:25", false, false},
	} {
		r := all
		r.Only = c.only
		set, err := Compile(r)
		if err != nil {
			t.Fatal(err)
		}
		target, err := ParseAuthority(c.target, 0)
		if err != nil {
			t.Fatal(err)
		}
		if v := set.Decide(target, Surroundings{}); v.Allowed != c.allowed || v.Any != c.any || v.Allowed == (v.Reason != "") {
			t.Errorf("only %q: %s: %+v", c.only, c.target, v)
		}
	}
	if err := (Rules{Only: [][]string{{"*"}}}).Validate(); err == nil {
		t.Error("a wrong entry is accepted")
	}
}

// TestUnknownHost: while the addresses of the host cannot be read, none is allowed, whatever the
// rules say.
func TestUnknownHost(t *testing.T) {
	s := compile(t, Rules{Public: true, Allow: []string{"93.184.216.34", "10.0.0.0/8:5432"}})
	for _, own := range [][]netip.Addr{nil, {}} {
		h := Surroundings{Own: func() []netip.Addr { return own }}
		for _, text := range []string{"93.184.216.34:443", "8.8.8.8:53", "10.1.1.1:5432"} {
			ap := netip.MustParseAddrPort(text)
			for _, byName := range []bool{false, true} {
				if v := s.Address(ap, byName, h); v.Allowed != (own != nil) {
					t.Errorf("%s, by name %t, own addresses %v: %+v", text, byName, own, v)
				}
			}
			if v := s.Decide(Target{Addr: ap.Addr(), Port: ap.Port()}, h); v.Allowed != (own != nil) {
				t.Errorf("%s, own addresses %v: %+v", text, own, v)
			}
		}
	}
}

// TestItself: a program that asks the proxy for its own box learns what to do, whatever the rules are.
func TestItself(t *testing.T) {
	for _, r := range []Rules{{}, {Public: true}, {Allow: []string{"other.example"}}} {
		for _, target := range []string{"localhost:80", "app.localhost:8080", "127.0.0.1:80", "127.9.9.9:1", "[::1]:443"} {
			to, err := ParseAuthority(target, 0)
			if err != nil {
				t.Fatal(err)
			}
			if v := compile(t, r).Decide(to, Surroundings{}); v.Allowed || !strings.Contains(v.Reason, "connect without the proxy (NO_PROXY)") {
				t.Errorf("%+v: %s: %+v", r, target, v)
			}
		}
	}
}
