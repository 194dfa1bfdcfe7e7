package compat

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/testutil"
	"github.com/boxd/boxd/test/boxes"
)

func TestMain(m *testing.M) { testutil.Main(m) }

// user runs the suites: on the host an ID without a user, in a box an ordinary one.
const user = 65533

// limit of a suite: one that hangs gets a name.
const limit = 10 * time.Minute

const searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/usr/games"

// row is a line of the table.
type row struct {
	suite           string
	host, box       string
	wall            time.Duration
	memory, threads *int64
}

// TestCompat runs the suites, all of them with BOXD_COMPAT=1.
func TestCompat(t *testing.T) {
	testutil.RequireRoot(t)
	all := os.Getenv("BOXD_COMPAT") != ""
	t.Setenv("PATH", searchPath+":"+os.Getenv("PATH"))
	in := inputs(t)
	e := boxes.Start(t)
	var table []row
	for _, s := range suites() {
		if !all && !s.quick {
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			for _, program := range s.needs {
				testutil.RequireProgram(t, program)
			}
			prepare(t, s, in)
			table = append(table, compare(t, e, s, in))
		})
	}
	if all {
		show(table)
	}
}

// compare runs one suite in both places. What fails in the box only must do so three times: foreign
// suites wait for fixed times, and a busy machine is late now and then.
func compare(t *testing.T, e engine.Engine, s suite, in string) row {
	hostOut, hostOK := onHost(t, s, in)
	out, result := inBox(t, e, s, in)
	r := row{s.name, "ok", "ok", result.Receipt.Wall, result.Receipt.MemoryPeak, result.Receipt.PIDsPeak}
	hostFailed, boxFailed := failed(s, hostOut, hostOK), failed(s, out, result.Verdict == engine.Exited && result.ExitCode == 0)
	if len(hostFailed) > 0 {
		r.host = fmt.Sprintf("%d fail", len(hostFailed))
	}
	var excused int
	var unexplained []string
	for _, name := range boxFailed {
		switch {
		case slices.Contains(hostFailed, name):
		case slices.ContainsFunc(different, func(d *regexp.Regexp) bool { return d.MatchString(s.key(name)) }):
			excused++
		default:
			unexplained = append(unexplained, name)
		}
	}
	if len(boxFailed) > 0 {
		r.box = fmt.Sprintf("%d fail, %d with a reason", len(boxFailed), excused)
	}
	if len(unexplained) == 0 {
		return r
	}
	first := len(unexplained)
	for range 2 {
		out, result = inBox(t, e, s, in)
		names := failed(s, out, result.Verdict == engine.Exited && result.ExitCode == 0)
		unexplained = slices.DeleteFunc(unexplained, func(name string) bool {
			if slices.Contains(names, name) {
				return false
			}
			t.Logf("%s failed in the box, but not again", s.key(name))
			return true
		})
		if len(unexplained) == 0 {
			break
		}
	}
	for _, name := range unexplained {
		t.Errorf("%s fails in the box only (%s, status %d)\n%s", s.key(name), result.Verdict, result.ExitCode, around(out, name))
	}
	if gone := first - len(unexplained); gone > 0 {
		r.box += fmt.Sprintf(", %d not again", gone)
	}
	return r
}

// key is the name of a test of the suite, as "different" knows it.
func (s suite) key(test string) string { return strings.TrimSuffix(s.name+": "+test, ": ") }

// failed names what failed: the empty name is the suite as a whole.
func failed(s suite, out string, ok bool) []string {
	var names []string
	if s.failures != nil {
		for _, m := range s.failures.FindAllStringSubmatch(out, -1) {
			names = append(names, strings.Join(m[1:], ""))
		}
		slices.Sort(names)
		names = slices.Compact(names)
	}
	if !ok && len(names) == 0 {
		names = []string{""}
	}
	return names
}

// around is the part of an output that tells of a failure.
func around(out, name string) string {
	if i := strings.LastIndex(out, name); name != "" && i >= 0 {
		return out[max(0, i-1000):min(len(out), i+2000)]
	}
	return out[max(0, len(out)-3000):]
}

// goroot is where Go's own tests find their data.
var goroot = sync.OnceValue(func() string {
	out, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		panic(err)
	}
	return strings.TrimSpace(string(out))
})

func environment(in, dir string) []string {
	return []string{"PATH=" + searchPath, "LC_ALL=C.UTF-8", "IN=" + in, "HOME=" + dir, "GOROOT=" + goroot(), "USER=user"}
}

// onHost runs a suite as a user without privileges, with processes, network and ipc of its own,
// which end with it.
func onHost(t *testing.T, s suite, in string) (string, bool) {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "boxd-compat-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chown(dir, user, user); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "unshare", "--net", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c",
		`ip link set lo up && exec setpriv --reuid 65533 --regid 65533 --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all sh -eu -c "$1"`, "sh", s.script)
	cmd.Dir, cmd.Env = dir, environment(in, dir)
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return string(out), err == nil
}

// inBox runs a suite in a box of its own. The limits are generous; the table shows what is used.
func inBox(t *testing.T, e engine.Engine, s suite, in string) (string, engine.Result) {
	t.Helper()
	b, remove := boxes.Create(t, e, engine.Spec{
		User:    engine.User{UID: 1000, GID: 1000},
		TmpSize: 1 << 30,
		Limits:  engine.Limits{Memory: 3 << 30, PIDs: 1024, CPUs: engine.Unlimited},
		Mounts: []engine.Mount{
			{Source: in, Target: "/opt/in", ReadOnly: true},
			{Source: goroot(), Target: "/opt/go", ReadOnly: true},
		},
	})
	defer remove()
	var out strings.Builder
	env := append(environment("/opt/in", "/tmp/work"), "GOROOT=/opt/go")
	result, err := engine.Run(t.Context(), b, engine.Command{
		Args: []string{"sh", "-eu", "-c", s.script}, Env: env, Stdout: &out, Stderr: &out, Dir: "/tmp/work", MakeDir: true, Timeout: limit,
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.String(), result
}

// inputs makes the directory for what suites need beside the programs of the host.
func inputs(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "boxd-compat-in-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// sqliteModule is SQLite as one file of C, which comes with a Go module.
const sqliteModule = "github.com/mattn/go-sqlite3@v1.14.24"

// prepare adds the input of one suite.
func prepare(t *testing.T, s suite, dir string) {
	t.Helper()
	run := func(program string, args ...string) {
		cmd := exec.CommandContext(t.Context(), program, args...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOFLAGS=", "CGO_ENABLED=0", "IN="+dir)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s %q: %v\n%s", program, args, err, out)
		}
	}
	name, isGo := strings.CutPrefix(s.name, "go ")
	switch {
	case isGo:
		run("go", "test", "-c", "-o", filepath.Join(dir, "go", strings.ReplaceAll(name, "/", "-")+".test"), name)
	case strings.Contains(s.script, "$IN\"/sqlite"):
		run("sh", "-ec", `mkdir m sqlite; cd m; go mod init m; go get `+sqliteModule+`
			cd "$(go list -m -f '{{.Dir}}' `+strings.Split(sqliteModule, "@")[0]+`)"
			cp sqlite3-binding.c "$IN/sqlite/sqlite3.c"; cp sqlite3-binding.h "$IN/sqlite/sqlite3.h"`)
	case strings.Contains(s.script, "$IN\"/npm"):
		run("sh", "-ec", `npm install --no-audit --no-fund --cache "$IN/npm" --prefix once typescript; rm -r once`)
	}
	run("chmod", "-R", "go=u-w", dir)
}

func show(table []row) {
	fmt.Printf("%-30s %-10s %-28s %8s %10s %8s\n", "suite", "host", "box", "seconds", "MiB", "threads")
	for _, r := range table {
		figure := func(n *int64, unit int64) string {
			if n == nil {
				return "-"
			}
			return fmt.Sprint(*n / unit)
		}
		fmt.Printf("%-30s %-10s %-28s %8.1f %10s %8s\n", r.suite, r.host, r.box, r.wall.Seconds(), figure(r.memory, 1<<20), figure(r.threads, 1))
	}
}

// TestReasons: what may fail in a box is in the document, by its name.
func TestReasons(t *testing.T) {
	text, err := os.ReadFile("../../docs/compatibility.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range different {
		if !strings.Contains(string(text), "`"+d.String()+"`") {
			t.Errorf("%q is not in docs/compatibility.md", d)
		}
	}
}
