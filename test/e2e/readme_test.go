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
	text, _ := cutScript(t, readme(t), daemonHeading)
	text, _ = cutScript(t, text, sessionHeading)
	text, _ = cutScript(t, text, imagesHeading)
	text, _ = cutScript(t, text, doorsHeading) // TestReadme of test/reach runs it
	job, data := readmeDir(t, "job"), readmeDir(t, "data")
	commands := 0
	for line := range strings.Lines(text) {
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

// Headings above lines that are one script each.
const (
	doorsHeading   = "## Four ways in\n"
	imagesHeading  = "## Images\n"
	daemonHeading  = "## A session that survives `kill -9`\n"
	sessionHeading = "### What else sessions have\n"
)

// cutScript returns text without the lines of shell below heading, and those.
func cutScript(t *testing.T, text, heading string) (rest, script string) {
	t.Helper()
	before, behind, ok := strings.Cut(text, heading)
	_, behind, begun := strings.Cut(behind, "```sh\n")
	script, behind, ended := strings.Cut(behind, "```\n")
	if !ok || !begun || !ended {
		t.Fatalf("README: no lines of shell below %q", heading)
	}
	return before + behind, script
}

// readme is the text of the README.
func readme(t *testing.T) string {
	t.Helper()
	root, err := testutil.Root()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// An image is imported, used and removed without a daemon.
func TestReadmeImages(t *testing.T) {
	c := newCLI(t)
	_, script := cutScript(t, readme(t), imagesHeading)
	dir := readmeDir(t, "images")
	c.env = append(c.env, "BOXD_DATA_DIR="+filepath.Join(dir, "data"))
	got := c.shell("set -e; cd " + dir + "; " + strings.ReplaceAll(script, "bin/boxd", "boxd"))
	if got.status != 0 {
		t.Fatalf("%v", got)
	}
	for _, want := range []string{"tools sha256:", "\n/bin/cat /bin/sh\n", "\nIMAGE\tDIGEST\t", "\ntools\t", "\ntools: ok\n", "deleted images: 0, layers: 1,"} {
		if !strings.Contains(got.stdout, want) {
			t.Errorf("%v, want %q", got, want)
		}
	}
}

// What sessions have besides commands is what the README says.
func TestReadmeSessions(t *testing.T) {
	d := newDaemon(t)
	d.start()
	_, script := cutScript(t, readme(t), sessionHeading)
	out := readmeDir(t, "out")
	got := d.shell("set -e; " + strings.NewReplacer("/srv/out", out, "bin/boxd", d.boxd).Replace(script))
	if got.status != 0 || !strings.HasPrefix(got.stdout, "42\nlab\n") {
		t.Fatalf("%v", got)
	}
	for _, want := range []string{"python3 /tmp/code-", "\texited\t", "default\ttrain\t1\t"} {
		if !strings.Contains(got.stdout, want) {
			t.Errorf("%v, want %q", got, want)
		}
	}
	if content, err := os.ReadFile(out + "/new.csv"); err != nil || string(content) != "1,2\n" {
		t.Errorf("the output is %q, %v", content, err)
	}
}

// What was running when it was killed is there again.
func TestReadmeDaemon(t *testing.T) {
	d := newDaemon(t)
	_, script := cutScript(t, readme(t), daemonHeading)
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
