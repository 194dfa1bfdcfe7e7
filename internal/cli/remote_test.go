package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/boxd/boxd/api/apitypes"
)

// fakeDaemon answers requests as the test says, and records them.
type fakeDaemon struct {
	t        *testing.T
	socket   string
	requests []seen
	// answer is called for each request, in order.
	answer func(r seen, w http.ResponseWriter)
}

// seen is a request, without what net/http adds.
type seen struct {
	what string // method, path and query
	body string
}

func newFakeDaemon(t *testing.T, answer func(r seen, w http.ResponseWriter)) *fakeDaemon {
	t.Helper()
	d := &fakeDaemon{t: t, socket: filepath.Join(t.TempDir(), "s"), answer: answer}
	l, err := net.Listen("unix", d.socket)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(d)
	server.Listener.Close()
	server.Listener = l
	server.Start()
	t.Cleanup(server.Close)
	return d
}

func (d *fakeDaemon) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) {
		return // the client gave up; the server closes connections that are new to it when the test ends
	}
	if err != nil {
		d.t.Error(err)
	}
	one := seen{r.Method + " " + r.URL.RequestURI(), string(body)}
	d.requests = append(d.requests, one)
	d.answer(one, w)
}

// call runs boxd with args against d.
func (d *fakeDaemon) call(args ...string) (status int, v *invocation) {
	d.t.Helper()
	v = newInvocation(d.t)
	return d.callWith(v, args...), v
}

func (d *fakeDaemon) callWith(v *invocation, args ...string) int {
	lookup := v.LookupEnv
	v.LookupEnv = func(key string) (string, bool) {
		if key == "BOXD_SOCKET" {
			return d.socket, true
		}
		return lookup(key)
	}
	return v.Main(args)
}

func (d *fakeDaemon) wantRequests(want ...string) {
	d.t.Helper()
	var got []string
	for _, r := range d.requests {
		got = append(got, strings.TrimSpace(r.what+" "+r.body))
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		d.t.Errorf("requests:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func send(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(v)
}

func refuse(w http.ResponseWriter, status int, code, detail string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(apitypes.Problem{Status: status, Code: code, Detail: detail, Instance: "req7"})
}

func TestNoDaemon(t *testing.T) {
	d := &fakeDaemon{t: t, socket: filepath.Join(t.TempDir(), "none")}
	for _, args := range [][]string{{"status"}, {"ps"}, {"sessions", "ls"}, {"exec", "s", "--", "true"}, {"logs", "s", "p"}, {"events"}, {"top", "--once"}, {"cp", "s:x", "-"}} {
		status, v := d.call(args...)
		line := v.stderr.String()
		if status != 125 || !strings.HasPrefix(line, "boxd: ") || strings.Count(line, "\n") != 1 || !strings.Contains(line, "is the daemon running?") || !strings.Contains(line, d.socket) {
			t.Errorf("%q: status %d, stderr %q", args, status, line)
		}
	}
}

// TestMayNotConnect: the message says what to do, and names the group that may connect.
func TestMayNotConnect(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	denied := func() error {
		dial := &net.OpError{Op: "dial", Net: "unix", Addr: &net.UnixAddr{Name: socket}, Err: os.NewSyscallError("connect", syscall.EACCES)}
		return explainRemote(fmt.Errorf("asking boxd: %w", dial))
	}
	for mode, want := range map[os.FileMode]string{0o660: "the socket is for group ", 0o600: "with sudo", 0: "with sudo"} {
		os.Remove(socket)
		if mode != 0 {
			if err := errors.Join(os.WriteFile(socket, nil, 0o600), os.Chmod(socket, mode)); err != nil {
				t.Fatal(err)
			}
		}
		if err := denied(); !errors.Is(err, syscall.EACCES) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "sudo") || strings.Contains(err.Error(), "group") != (mode == 0o660) {
			t.Errorf("%04o: %v", mode, err)
		}
	}
	if err := explainRemote(fs.ErrPermission); err != fs.ErrPermission {
		t.Errorf("of something else: %v", err)
	}
}

func TestRemoteUsage(t *testing.T) {
	for _, c := range []struct{ args, stderr string }{
		{"exec", "SESSION is missing: boxd exec SESSION [-- CMD [ARG...]]"},
		{"exec s --shell", "--shell with 0 arguments"},
		{"exec s t -- x", "\"t\": is one argument too many before \"--\""},
		{"exec s ls dir", "\"ls\": write \"--\" before the command: boxd exec s -- ls dir; see"},
		{"start s --id p sleep 1", "boxd start s -- sleep 1"},
		{"exec s ls -lA", "unknown flag -l in -lA; flags of the command to run go behind \"--\""},
		{"exec s --nosuch -- x", "unknown flag --nosuch"},
		{"exec -- x", "SESSION is missing: boxd exec SESSION [-- CMD"},
		{"exec .. -- x", `SESSION "..": must be 1 to 128 of`},
		{"exec s --memory 0 -- x", "--memory"},
		{"exec s --no-create --memory 1G -- x", "--no-create"},
		{"exec s --profile= -- x", `--profile "": must not be empty`},
		{"exec s --shell -- a b", "--shell with 2 arguments"},
		{"start s -- x", "--id PROCESS is missing"},
		{"stop s", "PROCESS is missing: boxd stop SESSION PROCESS"},
		{"stop s p q", "\"q\": is one argument too many: boxd stop SESSION PROCESS"},
		{"stop s ../p", "PROCESS \"../p\": must be 1 to 128"},
		{"exec --network proxy s -- ls", "--network proxy: write --network=proxy here, or --network for a proxy; see"},
		{"start s --id p --network none -- ls", "--network none: write --network=none here"},
		{"exec ../x -- ls", "SESSION \"../x\": must be 1 to 128"},
		{"ps a/b", "SESSION \"a/b\": must be 1 to 128"},
		{"ps a b", "\"b\": is one argument too many: boxd ps [SESSION]"},
		{"sessions rm", "SESSION is missing: boxd sessions rm SESSION..."},
		{"sessions rm a b/c", "SESSION \"b/c\": must be 1 to 128"},
		{"sessions show", "SESSION is missing: boxd sessions show SESSION"},
		{"sessions set", "SESSION is missing: boxd sessions set SESSION"},
		{"sessions set s", "nothing to change: give --network, --allow, --deny, --net-limit or --reset-rules; see"},
		{"sessions set s --network off", "--network \"off\": must be none or proxy"},
		{"sessions set s --network", "--network: needs a value: --network MODE; see"},
		{"sessions set s --network none --deny x", "--allow, --deny, --net-limit, --reset-rules with --network none: need --network proxy"},
		{"sessions set s --allow=", "--allow \"\": must not be empty"},
		{"sessions set s --net-limit speed=1", "--net-limit \"speed=1\": \"speed\" is no limit: must be connections, connection_rate, bytes, bandwidth or idle, such as connections=64,bytes=2G\n"},
		{"sessions set s --net-limit bytes=1Q", "--net-limit \"bytes=1Q\": bytes must be a size above 0, such as bytes=2G\n"},
		{"sessions set s --net-limit idle=0", "--net-limit \"idle=0\": idle must be a duration above 0, such as idle=5m\n"},
		{"sessions set s --net-limit connections", "--net-limit \"connections\": connections must be a whole number above 0, such as connections=64\n"},
		{"link s 80 --ttl 8d", "--ttl \"8d\": must be 1s to 7d, such as \"30m\", \"12h\" or \"7d\"\n"},
		{"sessions rn", "unknown command \"sessions rn\": did you mean ls or rm?; see \"boxd sessions --help\""},
		{"audit verify a b", "\"b\": is one argument too many"},
		{"start s --id a/b -- true", "--id \"a/b\": must be 1 to 128"},
		{"start s --id", "--id: needs a value: --id PROCESS; see"},
		{"exec s --memory", "--memory: needs a value: --memory SIZE; see"},
		{"exec s -u", "--user: needs a value: --user UID[:GID]; see"},
		{"events --since abc", "--since \"abc\": must be a whole number of 0 or more"},
		{"logs s p --offset abc", "--offset \"abc\": must be a whole number"},
		{"logs s p --follow=maybe", "--follow \"maybe\": must be true or false"},
		{"exec s --workspace-inodes x -- y", "--workspace-inodes \"x\": must be a whole number"},
		{"cp /dev/null a/b:c", "neither SOURCE nor DESTINATION"},
		{"langbot --ws-control-port 70000", "--ws-control-port \"70000\": must be a whole number from 0 to 65535"},
		{"logs s p --stream both", `--stream "both": must be stdout or stderr`},
		{"logs s p --offset -1", "--offset -1: must be an offset"},
		{"logs s p --since -1h", `--since "-1h": must be a duration`},
		{"logs s p --since 4096", "--offset takes a position"},
		{"logs s p --tail x", `--tail "x": must be a number of lines`},
		{"logs s p --tail -1", `--tail "-1": must be a number of lines`},
		{"logs s p -t --json", "--timestamps with --json"},
		{"attach s p --since x", "--since \"x\": must be"},
		{"attach s p --detach-keys ctrl-", "--detach-keys \"ctrl-\": must be"},
		{"attach s p --observe --take-over", "--take-over with --observe"},
		{"status --socket /x --url http://127.0.0.1:1", "--socket \"/x\": cannot be used together with --url"},
		{"status --url ftp://x", "must be http://host:port"},
		{"status --url http://127.0.0.1:1 --token-file /no-such-file", "--token-file: open /no-such-file"},
		{"status x", "\"x\": is one argument too many: boxd status;"},
		{"serve x", "\"x\": is one argument too many: boxd serve;"},
	} {
		v := newInvocation(t)
		status := v.Main(strings.Split(c.args, " "))
		line := v.stderr.String()
		if status != 125 || strings.Count(line, "\n") != 1 || !strings.HasPrefix(line, "boxd: ") || !strings.Contains(line, c.stderr) {
			t.Errorf("boxd %s: status %d, stderr %q, want %q", c.args, status, line, c.stderr)
		}
	}
}

func TestTokenIsSent(t *testing.T) {
	var header string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header = r.Header.Get("Authorization") + " " + r.Header.Get("X-Boxd-Tenant")
		send(w, apitypes.Status{Available: true})
	}))
	defer server.Close()
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte("abc-123\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	v := newInvocation(t)
	if status := v.Main([]string{"status", "--url", server.URL, "--token-file", path, "--tenant", "t1"}); status != 0 || header != "Bearer abc-123 t1" {
		t.Errorf("status %d, %q, header %q", status, v.stderr.String(), header)
	}
}

// TestRemovedIsNotFound: the message is the daemon's, without a repetition.
func TestRemovedIsNotFound(t *testing.T) {
	d := newFakeDaemon(t, func(_ seen, w http.ResponseWriter) {
		refuse(w, 404, apitypes.CodeSessionNotFound, `session "x": not found`)
	})
	if status, v := d.call("sessions", "rm", "x"); status != 125 || v.stderr.String() != "boxd: session \"x\": not found\n" {
		t.Errorf("status %d, %q", status, v.stderr.String())
	}
}

func TestRemoteErrorIsOneLine(t *testing.T) {
	d := newFakeDaemon(t, func(_ seen, w http.ResponseWriter) { refuse(w, 500, "internal", "something\nbroke") })
	status, v := d.call("ps", "s")
	if status != 125 || v.stderr.String() != "boxd: something; broke (request req7)\n" {
		t.Errorf("status %d, %q", status, v.stderr.String())
	}
}

// TestRemoteFieldIsAFlag: if the daemon refuses a field, the message names the user's flag.
func TestRemoteFieldIsAFlag(t *testing.T) {
	for _, c := range []struct{ field, detail, want string }{
		{"memory", "memory 1 B: must be more", "--memory 1 B: must be more"},
		{"workspace_size", `workspace_size "1": must be more`, `--workspace-size "1": must be more`},
		{"dir", `dir "rel": must be absolute`, `--workdir "rel": must be absolute`},
		{"user.uid", "user.uid 70000: must be less", "--user 70000: must be less"},
		{"mounts[0].source", `mounts[0].source "/a": may not`, `--mount source "/a": may not`},
		{"network_rules.limits.bytes", "network_rules.limits.bytes 9 B: is above", "--net-limit bytes 9 B: is above"},
		{"network_rules.allow[1]", `network_rules.allow[1] "*": must be`, `--allow "*": must be`},
		{"network_rules", "network_rules of a session", "network_rules of a session"},
		{"argv", `argv "": must not`, `argv "": must not`},
		{"memory", "the memory is used up", "the memory is used up"},
		{"", "broken", "broken"},
	} {
		d := newFakeDaemon(t, func(_ seen, w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(400)
			json.NewEncoder(w).Encode(apitypes.Problem{Status: 400, Code: apitypes.CodeInvalid, Detail: c.detail, Field: c.field})
		})
		for _, args := range []string{"exec s -- x", "exec -t s -- x", "start s --id p -- x"} {
			if status, v := d.call(strings.Fields(args)...); status != 125 || v.stderr.String() != "boxd: "+c.want+"\n" {
				t.Errorf("%s: status %d, %q, want %q", args, status, v.stderr.String(), c.want)
			}
		}
	}
	// The same holds for all other commands.
	for _, c := range []struct{ args, field, want string }{
		{"kill s p -s FOO", "signal", "--signal bad: must be better"},
		{"stop s p --grace 1s", "grace", "--grace bad: must be better"},
		{"start s --id p --process-memory 1 -- x", "memory", "--process-memory bad: must be better"},
		{"start s --id p --process-memory 1M --memory 1 -- x", "memory", "--memory bad: must be better"},
		{"image pull a --platform b", "platform", "--platform bad: must be better"},
		{"image import - --platform b", "name", "--name bad: must be better"},
		{"image rm a", "shared", "--shared bad: must be better"},
		{"image ls --tenant x", "X-Boxd-Tenant", "--tenant bad: must be better"},
	} {
		d := newFakeDaemon(t, func(_ seen, w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(400)
			json.NewEncoder(w).Encode(apitypes.Problem{Status: 400, Code: apitypes.CodeInvalid, Detail: c.field + " bad: must be better", Field: c.field})
		})
		if status, v := d.call(strings.Fields(c.args)...); status != 125 || v.stderr.String() != "boxd: "+c.want+"\n" {
			t.Errorf("%s: status %d, %q, want %q", c.args, status, v.stderr.String(), c.want)
		}
	}
}
