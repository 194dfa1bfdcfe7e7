package langbot

import (
	"context"
	"os/exec"
	"strings"
	"testing"
)

// TestPythonClient connects with the WebSocket library that LangBot's client is built
// on: its offers of compression, its fragments, its pings.
func TestPythonClient(t *testing.T) {
	t.Parallel()
	anyKernel(t)
	const python = "/usr/bin/python3"
	if err := exec.Command(python, "-c", "import websockets").Run(); err != nil {
		t.Skipf("%s has no package websockets; make setup installs it", python)
	}
	w := begin(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, python, "testdata/client.py", w.dialer().Base).CombinedOutput()
	if err != nil || !strings.HasSuffix(string(out), "ok\n") {
		t.Fatalf("%v\n%s", err, out)
	}
	if !strings.Contains(string(out), "PerMessageDeflate") {
		t.Errorf("compression was offered and not agreed on: %s", out)
	}
}
