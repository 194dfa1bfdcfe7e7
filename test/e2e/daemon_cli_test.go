package e2e

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestCopy(t *testing.T) {
	d := startDaemon(t)
	dir := t.TempDir()
	data := make([]byte, 3<<20)
	rand.Read(data)
	tree := filepath.Join(dir, "tree")
	if err := os.MkdirAll(filepath.Join(tree, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{"big": data, "sub/empty": nil} {
		if err := os.WriteFile(filepath.Join(tree, name), content, 0o750); err != nil {
			t.Fatal(err)
		}
	}
	d.says(0, "", "exec", "s", "--", "true")
	d.says(0, "", "cp", tree, "s:")
	d.says(0, "", "exec", "s", "--", "sh", "-c", "test -x tree/big && mkfifo tree/fifo && ln -s /etc/passwd tree/link")
	out := filepath.Join(dir, "out")
	got := d.run("cp", "s:tree", out)
	if got.status != 0 || strings.Count(got.stderr, "left out") != 1 {
		t.Errorf("%v", got)
	}
	if text, err := os.ReadFile(filepath.Join(out, "big")); err != nil || !bytes.Equal(text, data) {
		t.Errorf("%d bytes came back, %v", len(text), err)
	}
	if info, err := os.Stat(filepath.Join(out, "sub", "empty")); err != nil || info.Size() != 0 || info.Mode().Perm() != 0o750 {
		t.Errorf("%v, %v", info, err)
	}
	if target, err := os.Readlink(filepath.Join(out, "link")); target != "/etc/passwd" || err != nil {
		t.Errorf("%q, %v", target, err)
	}
	d.says(0, "", "cp", out+"/.", "s:again") // the fifo is not there any more
	d.says(0, "/etc/passwd\n", "exec", "s", "--", "readlink", "again/link")
	d.stdin = strings.NewReader("piped\x00\xff")
	d.says(0, "", "cp", "-", "s:/tmp/x")
	d.says(0, "piped\x00\xff", "cp", "s:/tmp/x", "-")
	d.wantRefused(125, d.run("cp", "s:/no/such", "-"), "/no/such")
}

// An MCP server, or any other program that speaks over stdio, works through attach.
func TestAttachPassesBytesUntouched(t *testing.T) {
	d := startDaemon(t)
	data := make([]byte, 2<<20)
	rand.Read(data)
	d.says(0, "", "start", "s", "--id", "cat", "--", "sh", "-c", "cat; echo end >&2; exit 4")
	d.stdin = bytes.NewReader(data)
	got := d.run("attach", "s", "cat")
	if got.status != 4 || got.stdout != string(data) || got.stderr != "end\n" {
		t.Errorf("status %d, %d bytes of stdout, stderr %q", got.status, len(got.stdout), got.stderr)
	}
	d.stdin = bytes.NewReader(data)
	one := d.run("run", "-i", "--state-dir", d.state, "--", "cat")
	if one.status != 0 || one.stdout != string(data) {
		t.Errorf("boxd run -i: status %d, %d bytes, %q", one.status, len(one.stdout), one.stderr)
	}
}

func TestAttachTerminal(t *testing.T) {
	d := startDaemon(t)
	d.says(0, "", "start", "s", "--id", "sh", "-t", "--", "sh")
	p := d.openPTY(33, 111, "attach", "s", "sh")
	p.send("stty size; tty\n")
	p.await("33 111")
	p.await("/dev/pts/0")
	p.resize(44, 99)
	p.send("stty size; kept=yes\n")
	p.await("44 99")
	p.send("\x10\x11")
	p.await("boxd: detached")
	if status := p.wait(); status != 0 {
		t.Errorf("detached with status %d", status)
	}
	// The shell still exists, with its state.
	p = d.openPTY(20, 70, "attach", "s", "sh", "--since", "end")
	p.send("echo kept=$kept\n")
	p.await("kept=yes")
	watch := d.openPTY(20, 70, "attach", "s", "sh", "--observe")
	watch.await("kept=yes")
	d.wantRefused(125, d.run("attach", "s", "sh"), "--take-over")
	other := d.openPTY(20, 70, "attach", "s", "sh", "--take-over", "--since", "end")
	p.await("another client has taken over")
	p.send("lost\x10\x11")
	p.await("boxd: detached")
	if status := p.wait(); status != 0 {
		t.Errorf("the one who wrote before: status %d: %q", status, p.text.String())
	}
	other.send("exit 6\n")
	if status := other.wait(); status != 6 {
		t.Errorf("status %d, want 6: %q", status, other.text.String())
	}
	if status := watch.wait(); status != 6 {
		t.Errorf("the one who watches: status %d, want 6", status)
	}
}

// A command at a terminal leaves nothing behind, however it ends.
func TestTerminalCommand(t *testing.T) {
	d := startDaemon(t)
	p := d.openPTY(33, 111, "exec", "-it", "s", "-e", "WORD=yes", "--", "sh")
	p.send("stty size; echo word=$WORD; exit 7\n")
	p.await("33 111")
	p.await("word=yes")
	if status := p.wait(); status != 7 {
		t.Errorf("exec -it: status %d, want 7: %q", status, p.text.String())
	}
	d.says(0, "", "ps", "-aq")
	// ^P is an ordinary key, and boxd ends with the command.
	p = d.openPTY(24, 80, "exec", "-it", "s", "--", "sh", "-c", "stty raw -echo; echo ready; dd bs=1 count=2 2>/dev/null | od -An -c; echo done; exec sleep 3600")
	p.await("ready")
	p.send("\x10\x11")
	p.await("done")
	if !strings.Contains(p.text.String(), "020 021") {
		t.Errorf("keys: %q", p.text.String())
	}
	p.cmd.Process.Signal(syscall.SIGHUP)
	if status := p.wait(); status != 129 || strings.Contains(p.text.String(), "keeps running") {
		t.Errorf("after SIGHUP: status %d: %q", status, p.text.String())
	}
	d.says(0, "", "ps", "-aq")
	d.says(0, "yes\r\n", "exec", "-t", "s", "--", "sh", "-c", "test -t 1 && echo yes")
	d.wantRefused(127, d.run("exec", "-t", "s", "--", "nosuchprogram"), "nosuchprogram")
	d.wantRefused(125, d.run("exec", "-it", "s", "--", "true"), "needs a terminal")

	p = d.openPTY(24, 80, "shell", "s", "-w", "/tmp")
	p.send("pwd; exit 3\n")
	p.await("/tmp\r\n")
	if status := p.wait(); status != 3 {
		t.Errorf("shell: status %d, want 3: %q", status, p.text.String())
	}
	d.says(0, "", "ps", "-aq")
	// Without a name there is a session for as long as the shell.
	p = d.openPTY(24, 80, "shell", "--memory", "64M")
	p.send("echo shell is u''p\n")
	p.await("shell is up")
	if got := d.run("sessions", "ls", "-q"); !strings.Contains(got.stdout, "shell-") {
		t.Errorf("%v", got)
	}
	p.send("exit\n")
	if status := p.wait(); status != 0 {
		t.Errorf("shell: status %d: %q", status, p.text.String())
	}
	d.says(0, "s\n", "sessions", "ls", "-q")
}

func TestProcesses(t *testing.T) {
	d := startDaemon(t)
	d.says(0, "", "start", "s", "--id", "p", "--", "sh", "-c", "echo out; echo err >&2; exec sleep 3600")
	got := d.run("ps", "s", "--json")
	var list struct{ Processes []struct{ ID, State string } }
	if err := json.Unmarshal([]byte(got.stdout), &list); err != nil || len(list.Processes) != 1 || list.Processes[0].ID != "p" || list.Processes[0].State != "running" {
		t.Errorf("%v, %v", got, err)
	}
	d.wantRefused(125, d.run("start", "s", "--id", "p", "--", "true"), "p")
	d.wantRefused(127, d.run("start", "s", "--id", "q", "--", "nosuchprogram"), "nosuchprogram")
	d.says(0, "", "stop", "s", "p")
	d.says(0, "out\n", "logs", "s", "p")
	d.says(0, "err\n", "logs", "s", "p", "--stream", "stderr")
	d.says(0, "t\n", "logs", "s", "p", "--offset", "2")
	d.says(0, "out\n", "logs", "-f", "s", "p")
	d.says(0, "out\n", "logs", "s", "p", "--since", "1h", "--tail", "1")
	d.says(0, "", "logs", "s", "p", "--tail", "0")
	d.says(0, "", "logs", "s", "p", "--since", "2100-01-01T00:00:00Z")
	stamp, word, _ := strings.Cut(d.run("logs", "s", "p", "--timestamps").stdout, " ")
	if at, err := time.Parse(time.RFC3339, stamp); err != nil || time.Since(at).Abs() > time.Hour || word != "out\n" {
		t.Errorf("--timestamps: %q %q, %v", stamp, word, err)
	}
	if got := d.run("ps", "--all"); got.status != 0 || !strings.Contains(got.stdout, "\tstopped\t") || !strings.Contains(got.stdout, "\t8 B\t") {
		t.Errorf("%v", got)
	}
	d.says(0, "", "ps", "-q")
	d.says(0, "s p stopped\n", "ps", "-a", "--format", "{{.session}} {{.id}} {{.state}}")
	d.says(0, "would remove process s p\n", "prune", "--dry-run")
	d.says(0, "p\n", "ps", "-aq", "s")
	d.says(0, "removed process s p\n", "prune")
	d.says(0, "", "ps", "-aq", "s")
	d.says(0, "", "start", "s", "--id", "p", "--", "sleep", "3600")
	d.says(0, "", "prune", "--idle", "1ms")
	d.says(0, "", "kill", "s", "p")
	d.says(0, "", "logs", "-f", "s", "p") // until it has ended
	d.says(0, "SIGKILL\n", "inspect", "s", "p", "--format", "{{.signal}}")
	d.says(0, "removed session s\n", "prune", "--idle", "1ms")
	d.says(0, "", "sessions", "ls", "-q")
	d.says(125, "", "attach", "s", "nosuch")
}

func TestLooking(t *testing.T) {
	d := startDaemon(t)
	d.says(0, "", "exec", "s", "--memory", "64M", "--", "true")
	events := d.openPTY(24, 200, "events", "--since", "0")
	events.await("session=s")
	events.cmd.Process.Signal(syscall.SIGINT)
	if status := events.wait(); status != 130 {
		t.Errorf("events: status %d", status)
	}
	for _, c := range []struct {
		args  string
		parts []string
	}{
		{"sessions ls", []string{"s\t", "\trunning\t", "default"}},
		{"sessions show s", []string{"64 MiB", "running"}},
		{"top --once", []string{"s\t", "64 MiB"}},
		{"top --once --json", []string{`"session":"s"`}},
		{"status", []string{"available", "yes"}},
		{"status --json", []string{`"available":true`}},
		{"__complete exec ", []string{"s\t"}},
	} {
		got := d.run(strings.Split(c.args, " ")...)
		for _, part := range c.parts {
			if got.status != 0 || !strings.Contains(got.stdout, part) {
				t.Errorf("boxd %s: %v, want %q", c.args, got, part)
			}
		}
	}
}

// serve --check tells whether a daemon could start, also where one runs, and disturbs
// nothing.
func TestServeCheck(t *testing.T) {
	d := startDaemon(t)
	d.says(0, "", "exec", "s", "--", "true")
	instances := func() string {
		list, err := filepath.Glob(filepath.Join(d.dir, "run", "*-*"))
		return fmt.Sprint(list, err)
	}
	before := instances()
	fresh := filepath.Join(t.TempDir(), "state")
	if got := d.run("serve", "--check", "--state-dir", fresh); got.status != 0 {
		t.Errorf("%+v", got)
	}
	if _, err := os.Stat(fresh); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the check created the state directory: %v", err)
	}
	if got := d.run("serve", "--check", "--state-dir", d.dir); got.status != 0 || !strings.HasSuffix(got.stdout, "boxd serve can start.\n") {
		t.Errorf("%v", got)
	}
	got := d.run("serve", "--check", "--state-dir", d.dir, "--user", "no-such-user", "--socket-group", "no-such-group", "--tokens-file", "/no/tokens")
	if got.status != 1 || !strings.Contains(got.stdout, "no-such-user") || !strings.Contains(got.stdout, "/no/tokens") || !strings.HasSuffix(got.stdout, "about the host.\n") {
		t.Errorf("%v", got)
	}
	d.says(0, "s\n", "sessions", "ls", "-q")
	if after := instances(); after != before {
		t.Errorf("left behind: %s, before %s", after, before)
	}
}

func TestAuditVerify(t *testing.T) {
	d := startDaemon(t)
	d.says(0, "", "exec", "s", "--", "true")
	d.stop()
	path := filepath.Join(d.dir, "audit.log")
	if got := d.run("audit", "verify", path); got.status != 0 || !strings.HasPrefix(got.stdout, "ok: ") {
		t.Errorf("%v", got)
	}
	_, head, _ := strings.Cut(strings.TrimSpace(d.run("audit", "verify", path).stdout), "head ")
	d.start() // it writes more lines behind that head
	if got := d.run("audit", "verify", "--head", head, path); got.status != 0 {
		t.Errorf("--head %s: %v", head, got)
	}
	if got := d.run("audit", "verify", "--head", strings.Repeat("9", 6)+":"+strings.Repeat("0", 64), path); got.status != 1 {
		t.Errorf("a head that is not there: %v", got)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	changed := bytes.Replace(text, []byte(`"session":"s"`), []byte(`"session":"t"`), 1)
	if bytes.Equal(text, changed) {
		t.Fatalf("no session in the audit log:\n%s", text)
	}
	other := filepath.Join(t.TempDir(), "audit.log")
	if err := os.WriteFile(other, changed, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := d.run("audit", "verify", other); got.status != 1 || !strings.Contains(got.stderr, "changed") {
		t.Errorf("%v", got)
	}
	d.wantRefused(125, d.run("audit", "verify", other+"2"), other+"2")
}

// A command whose client is gone is killed.
func TestExecIsStopped(t *testing.T) {
	d := startDaemon(t)
	d.says(0, "", "exec", "s", "--", "true")
	for sig, status := range map[syscall.Signal]int{syscall.SIGTERM: 143, syscall.SIGINT: 130, syscall.SIGKILL: -1} {
		p := d.openPTY(24, 80, "exec", "s", "--", "sh", "-c", "trap '' TERM INT; echo begun; while :; do sleep 3600; done")
		p.await("begun")
		p.cmd.Process.Signal(sig)
		if got := p.wait(); got != status {
			t.Errorf("%v: status %d, want %d", sig, got, status)
		}
	}
	// The next ones see nothing of them, once the daemon has noticed.
	deadline := time.Now().Add(patience)
	for {
		got := d.run("exec", "s", "--", "sh", "-c", "grep -l sleep /proc/[0-9]*/comm | wc -l")
		if got.stdout == "0\n" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("still there: %v", got)
		}
	}
}
