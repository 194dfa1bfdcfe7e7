package e2e

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/testutil"
	"golang.org/x/sys/unix"
)

// Users of TestLocalUsers. Those with a name are in a user database of the test.
const (
	sudoer      = 54001 // started the daemon with sudo
	listedByID  = 54002
	listedName  = 54003 // "boxd-listed"
	primary     = 54004 // "boxd-primary", of the socket's group
	member      = 54005 // "boxd-member", named in the socket's group
	rootOwner   = 54006 // of LangBot's mount root
	laterOwner  = 54007 // of one that is made when the daemon runs
	stranger    = 54008
	otherMember = 54009 // "boxd-other", of a group that is not the socket's
	socketGroup = 54100
	overflow    = 65534
)

// TestLocalUsers tries which users may use a TCP listener without tokens.
func TestLocalUsers(t *testing.T) {
	d := newDaemon(t, "--listen", "127.0.0.1:0", "--langbot-listen", "[::1]:0", "--log-format", "json", "--socket-group", "boxd-socket",
		"--listen-user", fmt.Sprint(listedByID), "--listen-user", "boxd-listed")
	dir := filepath.Dir(d.dir)
	shared, later := filepath.Join(dir, "shared"), filepath.Join(dir, "later")
	if err := os.Mkdir(shared, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(shared, rootOwner, rootOwner); err != nil {
		t.Fatal(err)
	}
	d.flags = append(d.flags, "--allow-mount-root", shared, "--allow-mount-root", later)
	d.withUserDatabase(dir)
	d.env = append(d.env, fmt.Sprintf("SUDO_UID=%d", sudoer))
	d.start()
	if err := os.Mkdir(later, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(later, laterOwner, laterOwner); err != nil {
		t.Fatal(err)
	}
	api, door := d.address("tcp"), d.langbotAddress()
	for _, c := range []struct {
		uid       int
		api, door bool
	}{
		{0, true, true}, {sudoer, true, true}, {listedByID, true, true}, {listedName, true, true}, {primary, true, true}, {member, true, true},
		{rootOwner, false, true}, {laterOwner, false, true},
		{stranger, false, false}, {otherMember, false, false}, {overflow, false, false},
	} {
		conn := dialAs(t, c.uid, api)
		for range 2 { // keep-alive
			status, body := ask(t, conn, "GET /v1/sessions HTTP/1.1\r\nHost: localhost\r\n\r\n")
			var problem struct{ Code, Detail string }
			if c.api {
				if status != 200 {
					t.Errorf("user %d: %d %s", c.uid, status, body)
				}
				continue
			}
			want := fmt.Sprintf("listen: user %d may not connect through TCP without a token: add the user to listen_users, or configure tokens (tokens_file)", c.uid)
			if err := json.Unmarshal([]byte(body), &problem); err != nil || status != 403 || problem.Code != "forbidden" || problem.Detail != want {
				t.Errorf("user %d: %d %s, want %q", c.uid, status, body, want)
			}
		}
		status, body := ask(t, dialAs(t, c.uid, door), "GET /rpc/ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"+
			"Sec-WebSocket-Key: mU9tELqwup70UkB3oGfzCg==\r\nSec-WebSocket-Version: 13\r\nX-LangBot-Instance-Id: i\r\n\r\n")
		want := fmt.Sprintf("langbot.listen: user %d may not connect through TCP without a token: add the user to listen_users, or set LANGBOT_BOX_CONTROL_TOKEN or langbot.token_file", c.uid)
		if c.door && status != 101 || !c.door && (status != 403 || body != want) {
			t.Errorf("LangBot's door, user %d: %d %s", c.uid, status, body)
		}
	}
	// They are operators of the tenant "default": they may change its objects, and see nothing of other
	// tenants or of the whole daemon.
	for _, uid := range []int{0, listedByID} {
		for request, want := range map[string]int{
			"POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}": 422,
			"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n":                                                               403,
			"GET /v1/sessions HTTP/1.1\r\nHost: localhost\r\nX-Boxd-Tenant: default\r\n\r\n":                                 200,
			"GET /v1/sessions HTTP/1.1\r\nHost: localhost\r\nX-Boxd-Tenant: other\r\n\r\n":                                   403,
			"GET /v1/sessions HTTP/1.1\r\nHost: localhost\r\nX-Boxd-Tenant: *\r\n\r\n":                                       403,
		} {
			if status, body := ask(t, dialAs(t, uid, api), request); status != want {
				t.Errorf("user %d, %.40q: %d %s, want %d", uid, request, status, body, want)
			}
		}
	}
	// A program with another user id, as users have them.
	for uid, status := range map[uint32]int{listedByID: 0, stranger: 125} {
		cmd, cancel := d.command("sessions", "ls", "--url", "http://"+api)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		if got := finish(t, cmd); got.status != status || status != 0 && !strings.Contains(got.stderr, "listen_users") {
			t.Errorf("boxd as user %d: %+v", uid, got)
		}
		cancel()
	}
	wantRefusalsLogged(t, d.logged())
	if log := d.logged(); !strings.Contains(log, fmt.Sprintf(`"actor":"uid:%d"`, listedByID)) {
		t.Error("the log does not name the user of a request")
	}
}

// refusalPause is what each listener waits before it logs a refused user again.
const refusalPause = 10 * time.Second

// wantRefusalsLogged: each listener has logged the first user that it refused, and then at most
// one for each pause.
func wantRefusalsLogged(t *testing.T, log string) {
	t.Helper()
	last := map[string]time.Time{} // by the setting of the listener
	for line := range strings.Lines(log) {
		var entry struct {
			Time        time.Time
			Msg, Reason string
			LikeThis    int `json:"like_this"`
		}
		if json.Unmarshal([]byte(line), &entry) != nil || entry.Msg != "refused a local user" {
			continue
		}
		setting, _, _ := strings.Cut(entry.Reason, ":")
		before, again := last[setting]
		switch {
		case !again && entry.LikeThis != 1:
			t.Errorf("the first line is about %d refusals: %s", entry.LikeThis, line)
		case again && entry.Time.Sub(before) < refusalPause:
			t.Errorf("only %v after the line before: %s", entry.Time.Sub(before), line)
		}
		last[setting] = entry.Time
	}
	for _, setting := range []string{"listen", "langbot.listen"} {
		if last[setting].IsZero() {
			t.Errorf("%q: the log has no line about a refused user", setting)
		}
	}
}

// A client in another network namespace cannot be identified.
func TestClientOfAnotherNetwork(t *testing.T) {
	testutil.RequireRoot(t)
	var client, server net.Conn
	var listener net.Listener
	err := linux.OnThrowawayThread(func() (err error) {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		if err := linux.SetLinkUp("lo"); err != nil {
			return err
		}
		if listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			return err
		}
		client, err = net.Dial("tcp", listener.Addr().String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	defer client.Close()
	if server, err = listener.Accept(); err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	if uid, err := linux.TCPClientUID(server.(*net.TCPConn)); !errors.Is(err, linux.ErrClientGone) {
		t.Errorf("user %d, %v; want ErrClientGone", uid, err)
	}
	if err := linux.CanNameTCPClients(listener); err == nil {
		t.Error("a listener of another network namespace passes")
	}
}

// withUserDatabase has the daemon see users and groups of the test besides the host's.
func (d *daemon) withUserDatabase(dir string) {
	d.t.Helper()
	program, err := os.ReadFile(d.boxd)
	if err != nil {
		d.t.Fatal(err)
	}
	boxd := filepath.Join(dir, "boxd") // where all users can execute it
	if err := os.WriteFile(boxd, program, 0o755); err != nil {
		d.t.Fatal(err)
	}
	script := fmt.Sprintf("#!/bin/sh\n[ \"$1\" = serve ] || exec %s \"$@\"\nexec unshare --mount sh -c '", boxd)
	for file, lines := range map[string]string{
		"/etc/passwd": fmt.Sprintf("boxd-listed:x:%d:54200::/:\nboxd-primary:x:%d:%d::/:\nboxd-member:x:%d:54200::/:\nboxd-other:x:%d:54200::/:\n",
			listedName, primary, socketGroup, member, otherMember),
		"/etc/group": fmt.Sprintf("boxd-socket:x:%d:someone,boxd-member\nboxd-users:x:54200:boxd-other\n", socketGroup),
	} {
		host, err := os.ReadFile(file)
		if err != nil {
			d.t.Fatal(err)
		}
		own := filepath.Join(dir, filepath.Base(file))
		if err := os.WriteFile(own, append(host, lines...), 0o644); err != nil {
			d.t.Fatal(err)
		}
		script += fmt.Sprintf("mount --bind %s %s && ", own, file)
	}
	script += fmt.Sprintf(`exec %s "$@"' sh "$@"`+"\n", boxd)
	wrapper := filepath.Join(dir, "boxd.sh")
	if err := os.WriteFile(wrapper, []byte(script), 0o755); err != nil {
		d.t.Fatal(err)
	}
	d.boxd = wrapper
}

// langbotAddress is where the daemon speaks LangBot's protocol.
func (d *daemon) langbotAddress() string {
	d.t.Helper()
	for line := range strings.Lines(d.logged()) {
		var entry struct{ Msg, Protocol, Address string }
		if json.Unmarshal([]byte(line), &entry) == nil && entry.Msg == "listening" && entry.Protocol == "langbot" {
			return entry.Address
		}
	}
	d.t.Fatalf("it does not speak LangBot's protocol:\n%s", d.logged())
	return ""
}

// dialAs connects with a socket of the user uid.
func dialAs(t *testing.T, uid int, addr string) net.Conn {
	t.Helper()
	var conn net.Conn
	err := linux.OnThrowawayThread(func() (err error) {
		if err := unix.Setfsuid(uid); err != nil {
			return err
		}
		conn, err = net.Dial("tcp", addr)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// ask sends a request and returns the answer.
func ask(t *testing.T, conn net.Conn, request string) (status int, body string) {
	t.Helper()
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusSwitchingProtocols {
		return resp.StatusCode, ""
	}
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}
