package network

import (
	"fmt"
	"strings"
	"testing"

	"github.com/boxd/boxd/internal/testutil"
	"github.com/boxd/boxd/test/langbot"
)

// TestLangbot: a session of LangBot that asks for a network reaches public addresses, by the rules that
// LangBot's profile has without configuration, and with langbot.network_on basic the package indexes only.
func TestLangbot(t *testing.T) {
	testutil.RequireRoot(t)
	const reached, refused, tunnelRefused = "200 000", "403 000", "000 403" // statuses of the answer, and of CONNECT
	rows := []struct{ url, basic, extended string }{
		{"http://pypi.org/simple/", reached, reached},
		{"https://files.pythonhosted.org/", "200 200", "200 200"},
		{"http://github.com/", refused, reached},
		{"https://github.com/", tunnelRefused, "200 200"},
		{"http://evil.example/", refused, reached},
		{"http://" + goodAddr + "/", refused, reached},
		{"http://[" + goodAddr6 + "]/", refused, reached},
		{"http://good.example:8080/", refused, reached},
		{"http://" + privateAddr + "/", refused, refused},
		{"http://private.example/", refused, refused},
		{"http://" + hostAddr4 + ":" + hostWebPort + "/", refused, refused},
		{"http://169.254.169.254/latest/", refused, refused},
	}
	for _, basic := range []bool{false, true} {
		t.Run(fmt.Sprint("basic ", basic), func(t *testing.T) {
			if basic {
				t.Setenv("BOXD_LANGBOT_NETWORK_ON", "basic")
			}
			startDaemon(t, "")
			c, err := langbot.Dialer{Base: "ws://" + langbotAddress}.Dial(t.Context(), "i")
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			script := ""
			for _, r := range rows {
				script += fmt.Sprintf("curl -sk -g -o /dev/null -w '%%{http_code} %%{http_connect}\n' '%s'\n", r.url)
			}
			world.take()
			var got struct {
				Stdout, Stderr string
			}
			err = c.Call(t.Context(), &langbot.Context{Instance: "i", Workspace: "w", Generation: 1}, "box_exec", map[string]any{"session_id": "s", "network": "on", "timeout_sec": 60, "cmd": script}, &got)
			if err != nil {
				t.Fatal(err)
			}
			lines := strings.Split(strings.TrimSpace(got.Stdout), "\n")
			if len(lines) != len(rows) {
				t.Fatalf("%d rows, and %q, %q", len(rows), got.Stdout, got.Stderr)
			}
			for i, r := range rows {
				want := r.extended
				if basic {
					want = r.basic
				}
				if lines[i] != want {
					t.Errorf("%s: %q, want %q", r.url, lines[i], want)
				}
			}
			hits, asked := world.take()
			if !basic {
				return
			}
			for _, name := range asked {
				if name != "pypi.org" && name != "files.pythonhosted.org" {
					t.Errorf("the resolver was asked for %q", name)
				}
			}
			for _, h := range hits {
				if !strings.HasPrefix(h.what, "tcp") && !strings.Contains(h.what, "pypi.org") && !strings.Contains(h.what, "files.pythonhosted.org") {
					t.Errorf("a server was reached: %v", h)
				}
			}
		})
	}
}
