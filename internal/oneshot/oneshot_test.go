package oneshot

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxd/boxd/api/apitypes"
)

// answer serves one connection at a new socket: it reads the request and writes text.
func answer(t *testing.T, text string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "boxd-oneshot-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		buf := make([]byte, 64<<10)
		n, _ := c.Read(buf)
		if !strings.HasPrefix(string(buf[:n]), "POST /v1/run HTTP/1.1\r\n") {
			t.Errorf("request %q", buf[:n])
		}
		c.Write([]byte(text))
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return socket
}

// TestAsk: whatever is not an acceptance leaves the command to others, and says why.
func TestAsk(t *testing.T) {
	for text, want := range map[string]string{
		"": "EOF",
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}":                                              "200 OK",
		"HTTP/1.1 404 Not Found\r\n\r\n":                                                              "404",
		"HTTP/1.1 403 Forbidden\r\ncontent-length: 31\r\n\r\n{\"code\":\"denied\",\"detail\":\"no\"}": "no",
		"HTTP/1.1 403 Forbidden\r\nContent-Length: 99999999999\r\n\r\n{}":                             "403",
		"HTTP/1.1 403 Forbidden\r\nContent-Length: -1\r\n\r\n{}":                                      "403",
		"HTTP/1.1 403 Forbidden\r\nContent-Length: 99999999999999999999\r\n\r\n{}":                    "403",
		"HTTP/1.1 101 Switching Protocols" + strings.Repeat("x", maxAnswer+1):                         "too long",
		"HTTP/1.1 1010 Odd\r\n\r\n":                                                                   "1010",
	} {
		_, err := Ask(answer(t, text), false, &apitypes.RunRequest{Argv: []string{"x"}})
		none, ok := errors.AsType[*Unused](err)
		if !ok || none.Absent || !strings.Contains(none.Reason, want) {
			t.Errorf("%.80q: %v, want %q", text, err, want)
		}
	}
	_, err := Ask(filepath.Join(t.TempDir(), "none"), true, &apitypes.RunRequest{})
	if none, ok := errors.AsType[*Unused](err); !ok || !none.Absent {
		t.Errorf("without a daemon: %v", err)
	}
}

// TestWait: only a result is one.
func TestWait(t *testing.T) {
	const accepted = "HTTP/1.1 101 Switching Protocols\r\n\r\n"
	for text, want := range map[string]string{
		accepted:                  "how far the command got is unknown",
		accepted + "{\"result\":": "how far the command got is unknown",
		accepted + "{}\n":         "no result",
		accepted + "[]\n":         "answer of the daemon",
		accepted + "{\"error\":{\"detail\":\"late\"},\"started\":true}\n": "late",
		accepted + "{\"result\":{\"verdict\":\"exited\",\"status\":3}}\n": "",
	} {
		r, err := Ask(answer(t, text), false, &apitypes.RunRequest{Argv: []string{"x"}})
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		_ = r.Start(nil, os.Stdout, os.Stdout, true) // the daemon may have gone
		res, err := r.Wait()
		_, unused := errors.AsType[*Unused](err)
		if want == "" && (err != nil || res.Status != 3) || want != "" && (unused || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %+v, %v, want %q", text, res, err, want)
		}
		r.Close()
	}
	r, err := Ask(answer(t, accepted+"{\"error\":{\"code\":\"quota\",\"detail\":\"full\"}}\n"), false, &apitypes.RunRequest{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	_, err = r.Wait()
	if none, ok := errors.AsType[*Unused](err); !ok || none.Problem.Code != "quota" {
		t.Errorf("before the start: %v", err)
	}
}

// TestTrusted: nobody else can have put the socket there.
func TestTrusted(t *testing.T) {
	dir := t.TempDir()
	for mode, ok := range map[os.FileMode]bool{0o755: true, 0o700: true, 0o775: false, 0o777: false} {
		sub := filepath.Join("/run", "boxd-trusted-test")
		if os.Geteuid() != 0 {
			sub = filepath.Join(dir, "sub") // below a directory that others may write to
			ok = false
		}
		if err := errors.Join(os.MkdirAll(sub, 0o755), os.Chmod(sub, mode)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(sub) })
		if err := Trusted(filepath.Join(sub, "s"), 12345); (err == nil) != ok {
			t.Errorf("%v: %v", mode, err)
		}
		if os.Geteuid() == 0 {
			if err := os.Chown(sub, 12345, 0); err != nil {
				t.Fatal(err)
			}
			if err := Trusted(filepath.Join(sub, "s"), 12345); (err == nil) != ok {
				t.Errorf("%v, of the daemon's user: %v", mode, err)
			}
			if err := Trusted(filepath.Join(sub, "s"), 54321); err == nil {
				t.Errorf("%v, of another user than the daemon's: trusted", mode)
			}
			if err := os.Chown(sub, 0, 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := Trusted("/tmp/s", 0); err == nil {
		t.Error("/tmp is trusted")
	}
}

// TestFind: where a daemon is looked for.
func TestFind(t *testing.T) {
	for _, c := range []struct {
		named, env, want string
		checked          bool
	}{
		{"/a", "BOXD_INIT=/i", "/a", false}, {"", "", DefaultSocket, true}, {"", "BOXD_SOCKET=/b", "/b", false},
		{"", "BOXD_INIT=/i", "", false}, {"", "BOXD_STATE_DIR=/s", "", false}, {"", "BOXD_URL=http://h", "", false},
	} {
		got, checked, err := Find(c.named, func(name string) (string, bool) {
			key, value, _ := strings.Cut(c.env, "=")
			if key != name {
				return "", false
			}
			return value, true
		})
		if got != c.want || checked != c.checked || (err != nil) != (c.want == "") {
			t.Errorf("%+v: %q, %v, %v", c, got, checked, err)
		}
	}
}

// TestEnding: a daemon's words are one line that no terminal obeys.
func TestEnding(t *testing.T) {
	one := int64(1)
	for _, c := range []struct {
		verdict, limit string
		kills          *int64
		want           string
	}{
		{"exited", "", nil, ""}, {"signaled", "x", nil, ""}, {"exited", "", &one, "memory limit reached, kills: 1"},
		{"oom", "64 MiB", &one, "verdict: oom (limit 64 MiB)"}, {"canceled", "", nil, "verdict: canceled"},
		{"a\x1b[2J", "", nil, "verdict: a?[2J"}, {"oom", "1\r\nx", nil, "verdict: oom (limit 1??x)"},
	} {
		if got := Ending(c.verdict, c.limit, c.kills); got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
}
