package cli

import (
	"net/http"
	"strings"
	"testing"
)

// A server of the daemon's configuration is named, and nothing is said about how it runs.
func TestMCPServeNamed(t *testing.T) {
	d := newFakeDaemon(t, func(_ seen, w http.ResponseWriter) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		w.Write([]byte(`{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"there is no server \"x\": there is notes"}}`))
	})
	for _, c := range []struct{ args, want string }{
		{"x", `boxd: there is no server "x": there is notes` + "\n"},
		{"x --stdio", `boxd: there is no server "x": there is notes` + "\n"},
		{"x --mode request", `boxd: --mode "request": cannot be given with the name of a server`},
		{"x --memory 1G", `boxd: --memory "`},
		{"x y", `write "--" before the command`},
		{"./x", `write "--" before the command`},
		{"", "the NAME of a server of the daemon, or -- and the command of another one, is missing"},
	} {
		v := newInvocation(t)
		status := v.Main(append([]string{"mcp", "serve", "--socket", d.socket}, strings.Fields(c.args)...))
		if status != statusFailed || !strings.Contains(v.stderr.String(), c.want) || strings.Count(v.stderr.String(), "\n") != 1 {
			t.Errorf("%s: status %d, %q, want %q", c.args, status, v.stderr.String(), c.want)
		}
	}
	for _, r := range d.requests {
		if r.what != "OPTIONS /mcp/x" {
			t.Errorf("asked %s", r.what)
		}
	}
}
