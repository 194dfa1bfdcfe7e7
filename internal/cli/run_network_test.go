package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/boxd/boxd/egress/rules"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/flagtext"
)

func TestNetLimits(t *testing.T) {
	var got spec.NetworkLimits
	for _, text := range []string{"connections=64,bytes=2G", "bandwidth=10M", "idle=90"} {
		if err := parseLimits(&got, text); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
	if want := (spec.NetworkLimits{Connections: 64, Bytes: 2 << 30, Bandwidth: 10 << 20, Idle: 90e9}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	for text, says := range map[string]string{
		"": "connections, connection_rate, bytes", "bytes": "", "bytes=0": "bytes", "bytes=-1": "", "connections=0": "connections", "connections=x": "connections", "idle=0": "idle", "idle=-1s": "",
		"bandwidth=1M,": "connections, connection_rate, bytes", "speed=1": "speed", "bytes=unlimited": "", "Bytes=1": "Bytes",
	} {
		if err := parseLimits(&got, text); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, want %q", text, err, says)
		}
	}
}

func TestInjectFlag(t *testing.T) {
	here, err := filepath.Abs("x")
	if err != nil {
		t.Fatal(err)
	}
	var got []rules.Inject
	v := injectValue(&got)
	for _, text := range []string{"api.example Authorization=file:/run/key=1", "b.example:8443  X-Key=env:KEY", "c.example A=file:x"} {
		if err := v.Set(text); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
	want := []rules.Inject{{Host: "api.example", Header: "Authorization", ValueFrom: rules.Source{File: "/run/key=1"}}, {Host: "b.example:8443", Header: "X-Key", ValueFrom: rules.Source{Env: "KEY"}},
		{Host: "c.example", Header: "A", ValueFrom: rules.Source{File: here}}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
	for _, text := range []string{"", "a.example", "a.example X", "a.example X=secret", "a.example X=file:", "a.example X=env:", "X=file:/x"} {
		if err := v.Set(text); text != "X=file:/x" && err == nil {
			t.Errorf("%q: no error", text)
		}
	}
}

// TestUpstreamFlags: the file of the login is read later, so its path no longer depends on the working
// directory; and a box without --allow reaches public addresses through the upstream proxy, too.
func TestUpstreamFlags(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.WriteFile("login", []byte("me:first\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	login, err := filepath.Abs("login")
	if err != nil {
		t.Fatal(err)
	}
	f := runFlags{network: networkProxy, upstream: "socks5://proxy.corp:1080", upstreamLogin: "login"}
	if err := f.checkNetwork(); err != nil {
		t.Fatal(err)
	}
	if got, want := f.rules(), (rules.Rules{Public: true, Upstream: "socks5://proxy.corp:1080", UpstreamLogin: &rules.Source{File: login}}); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestNetworkWords: --network of a session understands the words of boxd run.
func TestNetworkWords(t *testing.T) {
	for text, want := range map[string]bool{"proxy": true, "none": false, "true": true, "false": false} {
		for _, s := range spec.Table {
			if s.Name != "network" {
				continue
			}
			var w spec.Wishes
			if err := flagtext.Setting(s, s.Of(&w), text); err != nil || *w.Network != want {
				t.Errorf("%s: %v", text, err)
			}
			if flagtext.Setting(s, s.Of(&w), "nat") == nil {
				t.Error("nat: no error")
			}
		}
	}
	for _, s := range spec.Table {
		var w spec.Wishes
		if s.Name == "sensitive" && flagtext.Setting(s, s.Of(&w), "proxy") == nil {
			t.Error("--sensitive=proxy: no error")
		}
	}
}

// TestAllowMessages: a refused entry is one line with the flag, the value, the rule and an example.
func TestAllowMessages(t *testing.T) {
	const form = "must be a name, address or CIDR, with or without :PORT, such as example.com, *.example.com or 10.1.2.0/24:5432"
	for entry, rule := range map[string]string{
		"exa mple":            form,
		"a..b":                form,
		"https://example.com": "must be a name or an address without a scheme, such as example.com, or example.com:8443 for another port",
		"*":                   `must not be "*" alone: without --allow, a box reaches every public address`,
		"example.com:":        "must have a port after the colon, such as example.com:22",
		"example.com:99999":   "must have a port or PORT-PORT from 1 to 65535 after the colon, such as example.com:22 or example.com:8000-8010",
		"10.0.0.0/33":         "must be a CIDR such as 203.0.113.0/24",
	} {
		v := newInvocation(t)
		want := fmt.Sprintf("boxd: --allow %q: %s\n", entry, rule)
		if status := v.Main([]string{"run", "--network", "proxy", "--allow", entry, "--", "true"}); status != 125 || v.stderr.String() != want {
			t.Errorf("status %d, %q, want %q", status, v.stderr.String(), want)
		}
	}
}
