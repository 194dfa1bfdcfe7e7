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

// Every boxd command of the README does what is said there. Its example
// directories are replaced by some of the test.
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
