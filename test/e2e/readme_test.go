package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/boxd/boxd/internal/testutil"
)

// What a comment behind a command of the README promises.
var (
	promisedStatus = regexp.MustCompile(`exit (\d+)`)
	promisedStderr = regexp.MustCompile(`stderr: (.*)$`)
)

// Every boxd command of the README does what it says. Directories of the test replace those of the
// example.
func TestReadme(t *testing.T) {
	c := newCLI(t)
	root, err := testutil.Root()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	text, _ = cutDaemon(t, text)
	job, data := readmeDir(t, "job"), readmeDir(t, "data")
	commands := 0
	for line := range strings.Lines(string(text)) {
		call, ok := strings.CutPrefix(strings.TrimSpace(line), "bin/boxd ")
		if !ok {
			continue
		}
		commands++
		call, comment, _ := strings.Cut(call, " # ")
		call = strings.NewReplacer("/srv/job", job, "/srv/data", data).Replace(call)
		if strings.Contains(call, " -it ") {
			c.readmeTerminal(call)
			continue
		}
		got := c.shell("boxd " + call)
		want := 0
		if m := promisedStatus.FindStringSubmatch(comment); m != nil {
			want, _ = strconv.Atoi(m[1])
		} else if strings.Contains(call, "exit 3") {
			want = 3
		}
		stderr := ""
		if m := promisedStderr.FindStringSubmatch(comment); m != nil {
			stderr = m[1]
		}
		if got.status != want || !strings.Contains(got.stderr, stderr) {
			t.Errorf("boxd %s: %v, want status %d and %q", call, got, want, stderr)
		}
	}
	if commands < 5 {
		t.Errorf("only %d commands found in the README", commands)
	}
	if got, err := os.ReadFile(filepath.Join(job, "result")); err != nil || string(got) != "done\n" {
		t.Errorf("the workspace's result is %q, %v", got, err)
	}
}

// daemonHeading is above the lines about the daemon, which are one script.
const daemonHeading = "## A session that survives `kill -9`\n"

// cutDaemon returns the README without its lines about the daemon, and those.
func cutDaemon(t *testing.T, text []byte) (rest []byte, script string) {
	t.Helper()
	before, behind, ok := strings.Cut(string(text), daemonHeading)
	_, behind, begun := strings.Cut(behind, "```sh\n")
	script, behind, ended := strings.Cut(behind, "```\n")
	if !ok || !begun || !ended {
		t.Fatalf("README: no lines of shell below %q", daemonHeading)
	}
	return []byte(before + behind), script
}

// What was running when it was killed is there again.
func TestReadmeDaemon(t *testing.T) {
	d := newDaemon(t)
	root, err := testutil.Root()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, script := cutDaemon(t, text)
	if n := strings.Count(script, "\n"); n != 10 {
		t.Errorf("%d lines of shell", n)
	}
	script = strings.NewReplacer("/srv/boxd", d.dir, "bin/boxd serve", d.boxd+" serve 2>>"+d.log, "bin/boxd", d.boxd).Replace(script)
	// The daemon is killed once more, so that the shell leaves none behind.
	got := d.shell("trap 'kill -9 $!; wait $! || :' EXIT; set -e; " + script)
	defer func() {
		d.start("--stop-sessions")
		d.stop()
	}()
	if got.status != 0 {
		t.Fatalf("%v", got)
	}
	out := numbers(got.stdout)
	want := ""
	for _, upTo := range []int{3, 40} {
		for n := 1; n <= upTo; n++ {
			want += strconv.Itoa(n) + "\n"
		}
	}
	if out != want || !strings.Contains(got.stdout, "\nkept\n") {
		t.Errorf("%v, want 1 to 3 and 1 to 40", got)
	}
}

// numbers are the lines of text that are numbers.
func numbers(text string) (list string) {
	for line := range strings.Lines(text) {
		if _, err := strconv.Atoi(strings.TrimSpace(line)); err == nil {
			list += line
		}
	}
	return list
}

// readmeDir is a directory that can be mounted: not below a denied one.
func readmeDir(t *testing.T, name string) string {
	dir, err := os.MkdirTemp("/tmp", "boxd-readme-"+name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// shell runs a line as a user types it, with boxd in the PATH.
func (c *cli) shell(line string) result {
	c.t.Helper()
	saved := c.boxd
	defer func() { c.boxd = saved }()
	env := c.env
	defer func() { c.env = env }()
	c.env = append(c.env, "PATH="+filepath.Dir(saved)+":"+os.Getenv("PATH"))
	c.boxd = "/bin/sh"
	return c.run("-c", line)
}

// readmeTerminal has a shell at a terminal say something and leave.
func (c *cli) readmeTerminal(call string) {
	c.t.Helper()
	p := c.openPTY(24, 80, strings.Fields(call)...)
	p.send("echo $((6*7)); exit\n")
	p.await("42")
	if status := p.wait(); status != 0 {
		c.t.Errorf("boxd %s: status %d", call, status)
	}
}
