package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/internal/testutil"
)

// codes are programs of the shipped languages; each prints the sum of its arguments, and the
// text that a module or file beside it has.
var codes = []struct{ file, code, beside, content, program string }{
	{"sum.py", "import sys\nfrom words import word\nprint(sum(map(int, sys.argv[1:])), word)\n", "words.py", "word = 'python'\n", "python3"},
	{"sum.js", "console.log(process.argv.slice(2).reduce((a, b) => a + +b, 0), require('./words.json').word)\n", "words.json", `{"word": "javascript"}`, "node"},
	{"sum.sh", "declare -A a=([x]=$(($1 + $2)))\n. \"$(dirname \"$0\")/words\"\necho ${a[x]} $word\n", "words", "word=bash\n", "bash"},
}

// TestPresetExecution: code of each shipped language runs, with files beside it; its own files
// stay in the workspace, and nothing else does. There is no network to ask for, and no
// session for ever.
func TestPresetExecution(t *testing.T) {
	d := startDaemon(t)
	dir := t.TempDir()
	write := func(name, content string) string {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		return name
	}
	for _, c := range codes {
		t.Run(c.program, func(t *testing.T) {
			testutil.RequireProgram(t, c.program)
			file, beside := write(c.file, c.code), write(c.beside, c.content)
			word := map[string]string{"python3": "python", "node": "javascript", "bash": "bash"}[c.program]
			for _, profile := range []string{"execution", "offline_readonly"} {
				d.says(0, "42 "+word+"\n", "code", profile, "--profile", profile, file, "--with", beside, "--", "40", "2")
			}
		})
	}
	d.stdin = strings.NewReader("with open('kept', 'w') as f: f.write('yes')")
	d.says(0, "", "code", "execution", "--language", "python", "-")
	d.says(0, "kept\n", "exec", "execution", "--", "ls", "-A", "/workspace")
	d.says(0, "yes", "exec", "execution", "--", "cat", "kept")
	d.says(1, "", "exec", "execution", "--", "sh", "-c", "for i in $(seq 500); do ls -d /tmp/code-* >/dev/null 2>&1 || break; sleep 0.01; done; ls -d /tmp/code-* 2>/dev/null; false")
	user := write("user.py", "import os\nprint(os.getuid(), oct(os.stat(os.path.dirname(__file__)).st_mode))\n")
	d.says(0, "1000 0o40700\n", "code", "execution", "-u", "1000:1000", user)

	d.stdin = strings.NewReader("import subprocess\nheld = [subprocess.Popen(['sleep', '60']) for _ in range(200)]")
	if got := d.run("code", "execution", "--language", "python", "-"); !strings.Contains(got.stderr, "pids-limit (limit 128)") {
		t.Errorf("too many processes: %v", got)
	}
	long := write("long.py", "import time\ntime.sleep(600)\n")
	d.says(124, "", "code", "execution", "--timeout", "200ms", long)
	var s struct {
		MaxLifetime float64 `json:"max_lifetime"`
	}
	if got := d.run("sessions", "show", "execution", "--json"); json.Unmarshal([]byte(got.stdout), &s) != nil || s.MaxLifetime != 3600 {
		t.Errorf("%v", got)
	}
	// A full /tmp is the box's own problem, and is named.
	d.says(1, "", "exec", "full", "--tmp-size", "1M", "--", "sh", "-c", "cat /dev/zero >/tmp/zeros 2>/dev/null")
	d.wantRefused(125, d.run("code", "full", long), "placing the code", "no space left on device")
	// The directory of the code is removed after the answer.
	for end := time.Now().Add(patience); d.run("exec", "full", "--", "ls", "-A", "/tmp").stdout != "zeros\n"; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("a part of the code stays: %v", d.run("exec", "full", "--", "ls", "-A", "/tmp"))
		}
	}
	d.wantRefused(125, d.run("code", "n", "--profile", "execution", "--network", user), "--network", "allow_network")
	d.wantRefused(125, d.run("code", "n", "--profile", "execution", "--persistent", user), "--persistent", "allow_persistent")
	d.wantRefused(125, d.run("code", "n", "--language", "perl", user), "--language", "bash, javascript, python")
	d.wantRefused(125, d.run("code", "n", write("x.pl", "1;")), "--language", `no language has files like "x.pl"`)
}

// TestPresetOfflineReadonly: code looks at data that it is given, and can change nothing but its
// own scratch space, whatever the request asks for. Its session has no network, for good.
func TestPresetOfflineReadonly(t *testing.T) {
	testutil.RequireProgram(t, "python3")
	data := t.TempDir()
	if err := os.WriteFile(filepath.Join(data, "table.csv"), []byte("1\n2\n39\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(data, 0o777); err != nil {
		t.Fatal(err)
	}
	d := startDaemon(t, "--allow-mount-root", data)
	d.says(0, "", "volumes", "create", "data", "--size", "4M")
	d.stdin = strings.NewReader(`
import os, socket
print(sum(int(line) for line in open("/table/table.csv")))
for path in ["/table", "/data", "/workspace", "/etc", "/usr", "/tmp", os.environ["HOME"], "/dev/shm"]:
    try:
        open(path + "/x", "w").close()
        print("wrote", path)
    except OSError as e:
        print(path, e.strerror)
try:
    socket.create_connection(("192.0.2.1", 80), 1)
except OSError as e:
    print(e.strerror)
`)
	got := d.run("code", "judge", "--profile", "offline_readonly", "-v", data+":/table", "--volume", "data:/data", "--rw-rootfs", "--sensitive=false", "--network", "--language", "python", "-")
	const ro = " Read-only file system\n"
	if want := "42\n/table" + ro + "/data" + ro + "/workspace" + ro + "/etc" + ro + "/usr" + ro + "wrote /tmp\nwrote /home/box\nwrote /dev/shm\nNetwork is unreachable\n"; got.status != 0 || got.stdout != want {
		t.Errorf("%v, want %q", got, want)
	}
	if left, err := os.ReadDir(data); err != nil || len(left) != 1 {
		t.Errorf("%v, %v", left, err)
	}
	var s struct {
		Network    bool
		Overridden []string
		Sensitive  *struct{ Reason string }
	}
	if got := d.run("sessions", "show", "judge", "--json"); json.Unmarshal([]byte(got.stdout), &s) != nil || s.Network || s.Sensitive == nil || !strings.Contains(s.Sensitive.Reason, `profile "offline_readonly"`) ||
		!slices.Equal(s.Overridden, []string{"mounts[0].read_only", "network", "sensitive", "volumes[0].read_only", "writable_root"}) {
		t.Errorf("%+v: %v", s, got)
	}
	if got := d.run("exec", "judge", "--memory", "512M", "--", "true"); got.status != 125 {
		t.Errorf("above its cap: %v", got)
	}
}

// TestPresetApp: a server answers on its port, many connections at a time, and its session
// stays for a day without use.
func TestPresetApp(t *testing.T) {
	testutil.RequireProgram(t, "python3")
	d := startDaemon(t)
	server := `import resource, socket
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
s = socket.create_server(("127.0.0.1", 8080), backlog=4096)
open("ready", "w").close()
held = []
while True:
    c, _ = s.accept()
    held.append(c)
    c.sendall(b"%d\n" % len(held))`
	d.says(0, "", "start", "app", "--profile", "app", "--id", "web", "--", "python3", "-c", server)
	client := `import os, resource, socket, time
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
while not os.path.exists("ready"): time.sleep(0.01)
held = [socket.create_connection(("127.0.0.1", 8080)) for _ in range(1500)]
print([c.recv(99) for c in held][-1])`
	d.stdin = strings.NewReader(client)
	d.says(0, "b'1500\\n'\n", "code", "app", "--language", "python", "-")
	d.listensOn("app", 8080)
	var s struct {
		IdleTTL     float64 `json:"idle_ttl"`
		MaxLifetime float64 `json:"max_lifetime"`
	}
	if got := d.run("sessions", "show", "app", "--json"); json.Unmarshal([]byte(got.stdout), &s) != nil || s.IdleTTL != 86400 || s.MaxLifetime != 0 {
		t.Errorf("%v", got)
	}
	d.says(0, "ok\n", "exec", "other", "--profile", "app", "--persistent", "--", "echo", "ok")
}

// listensOn fails the test unless something in the session listens on port.
func (d *daemon) listensOn(session string, port int) {
	d.t.Helper()
	c, err := client.New(client.Options{Socket: d.socket()})
	if err != nil {
		d.t.Fatal(err)
	}
	defer c.Close()
	list, err := c.Ports(d.t.Context(), session)
	if err != nil || !slices.ContainsFunc(list, func(p apitypes.Port) bool { return p.Port == port }) {
		d.t.Errorf("nothing listens on %d in %s: %+v, %v", port, session, list, err)
	}
}

// TestPresetBrowser: Chromium shows pages within the limits of the profile. In full, as many
// tabs and as large a picture as docs/config.md promises.
func TestPresetBrowser(t *testing.T) {
	testutil.Long(t)
	testutil.RequireProgram(t, "chromium")
	testutil.RequireProgram(t, "python3")
	d := startDaemon(t)
	d.says(0, "", "exec", "browser", "--profile", "browser", "--", "true")
	d.says(0, "", "cp", "testdata/page.html", "browser:page.html")
	tabs, size := "3", "800,600"
	if testutil.Full() {
		tabs, size = "20", "3000,9000"
	}
	chromium := []string{"chromium", "--headless", "--no-sandbox", "--disable-gpu"}
	d.says(0, "", append(append([]string{"start", "browser", "--id", "chromium", "--"}, chromium...), "--user-data-dir=/tmp/tabs", "--remote-debugging-port=9222", "about:blank")...)
	d.says(0, tabs+" tabs\n", "code", "browser", "--timeout", "10m", "testdata/tabs.py", "--", tabs)
	d.listensOn("browser", 9222)
	d.says(0, "", "stop", "browser", "chromium")
	if got := d.run(append(append([]string{"exec", "browser", "--timeout", "10m", "--receipt", "--"}, chromium...), "--user-data-dir=/tmp/picture", "--window-size="+size, "--screenshot=picture.png", "file:///workspace/page.html")...); got.status != 0 {
		t.Errorf("%v", got)
	} else {
		t.Logf("%s", got.stderr)
	}
	d.says(0, "PNG image data, "+strings.Replace(size, ",", " x ", 1)+", 8-bit/color RGB, non-interlaced\n", "exec", "browser", "--", "file", "-b", "picture.png")
}

// The profiles with a network are refused as long as there is none, and work without it.
func TestPresetNetwork(t *testing.T) {
	d := newDaemon(t)
	d.env = append(d.env, "BOXD_NETWORK=off")
	d.start()
	for _, profile := range []string{"network_basic", "network_extended"} {
		d.wantRefused(125, d.run("exec", profile, "--profile", profile, "--", "true"), "--network", "ask for network false")
		d.says(0, "ok\n", "exec", profile, "--profile", profile, "--network=false", "--", "echo", "ok")
	}
}
