package attack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native"
	"github.com/boxd/boxd/files"
	"github.com/boxd/boxd/internal/boxtest"
	"github.com/boxd/boxd/internal/testutil"
	"github.com/boxd/boxd/test/boxes"
)

func TestMain(m *testing.M) { testutil.Main(m) }

// probeTarget is where a box finds the program.
const probeTarget = "/opt/probe"

// TestProbes tries every probe in every kind of box, as its root and as an
// ordinary user.
func TestProbes(t *testing.T) {
	testutil.RequireRoot(t)
	e := boxes.Start(t)
	tryProbes(t, []bool{false, true}, probeUsers, func(t *testing.T, s engine.Spec) engine.Box { return create(t, e, s) })
}

// TestProbesOfPool tries every probe in boxes that were built before they were asked for, in short only in one
// with a read-only root, as its root.
func TestProbesOfPool(t *testing.T) {
	if !testutil.Full() {
		t.Skip("takes long: only in make full")
	}
	testutil.RequireRoot(t)
	_, initPath := testutil.BuildBinaries(t)
	e, err := native.Start(t.Context(), native.Options{InitPath: initPath, Pool: 8})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	state := func() engine.PoolState {
		s, err := e.Pool(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	writable, users := []bool{false}, probeUsers[:1]
	if testutil.Full() {
		writable, users = []bool{false, true}, probeUsers
	}
	tryProbes(t, writable, users, func(t *testing.T, s engine.Spec) engine.Box {
		// Boxes of an earlier kind may still be ready, so only a hit tells that there was one of this kind.
		for end := time.Now().Add(boxtest.Patience); ; {
			before := state().Hits
			b := create(t, e, s)
			switch {
			case state().Hits > before:
				return b
			case time.Now().After(end):
				t.Fatalf("the pool has no box after %v: %+v", boxtest.Patience, state())
			}
			time.Sleep(50 * time.Millisecond)
		}
	})
}

// probeUsers are the users as whom probes run.
var probeUsers = []engine.User{{}, {UID: 1000, GID: 1000}}

// tryProbes tries every probe in boxes with the given kinds of root, as each of users.
func tryProbes(t *testing.T, writable []bool, users []engine.User, create func(*testing.T, engine.Spec) engine.Box) {
	program, bait := buildProbe(t), setBait(t)
	for _, writableRoot := range writable {
		for _, user := range users {
			root := "root=ro"
			if writableRoot {
				root = "root=rw"
			}
			t.Run(fmt.Sprintf("%s, user %d", root, user.UID), func(t *testing.T) {
				workspace := t.TempDir()
				b := create(t, engine.Spec{
					WritableRoot: writableRoot,
					User:         user,
					Mounts: []engine.Mount{
						{Source: workspace, Target: engine.WorkspaceTarget},
						{Source: filepath.Dir(program), Target: probeTarget, ReadOnly: true},
					},
				})
				for _, name := range probes(t, program) {
					t.Run(name, func(t *testing.T) {
						if name == "int80" && faultsBare(t, program) {
							t.Skip("int 0x80 faults on this machine outside of a box too, so nothing can be tried")
						}
						wantBlocked(t, b, name, append(slices.Clone(bait), root))
					})
				}
				wantNoSetid(t, workspace)
			})
		}
	}
}

// TestTerminal tries what only a command with a terminal can: it is the caller's
// terminal that would be typed into.
func TestTerminal(t *testing.T) {
	testutil.RequireRoot(t)
	program := buildProbe(t)
	b := create(t, boxes.Start(t), engine.Spec{
		Mounts: []engine.Mount{{Source: filepath.Dir(program), Target: probeTarget, ReadOnly: true}},
	})
	for _, name := range []string{"tiocsti", "tioclinux", "tiocsetd", "fds", "spy-init"} {
		t.Run(name, func(t *testing.T) {
			try(t, b, name, nil, engine.Command{TTY: &engine.WindowSize{Rows: 24, Cols: 80}})
		})
	}
}

// TestBuiltin attacks a file operation in progress, which is a process of the command's own user. It
// has nothing that the user does not have, but it runs the launcher's program, and it must do what
// its caller asked for.
func TestBuiltin(t *testing.T) {
	testutil.RequireRoot(t)
	program := buildProbe(t)
	e := boxes.Start(t)
	for _, user := range []engine.User{{}, {UID: 1000, GID: 1000}} {
		b := create(t, e, engine.Spec{
			User:   user,
			Mounts: []engine.Mount{{Source: filepath.Dir(program), Target: probeTarget, ReadOnly: true}},
		})
		end, written := startWrite(t, b)
		for _, name := range probes(t, program, "builtin") {
			t.Run(fmt.Sprintf("user %d/%s", user.UID, name), func(t *testing.T) { wantBlocked(t, b, name, nil) })
		}
		end.Close()
		if err := <-written; err != nil {
			t.Errorf("user %d: %v", user.UID, err)
		}
	}
}

// startWrite begins to write a file. The operation runs, and waits for more content
// until it is closed; its error is sent to written.
func startWrite(t *testing.T, b engine.Box) (end io.Closer, written <-chan error) {
	t.Helper()
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		_, err := files.Write(context.Background(), b, files.Options{Timeout: time.Minute}, "file", r, files.WriteOptions{})
		done <- err
	}()
	t.Cleanup(func() { w.Close() })
	// More than fits into the pipe, so something reads it.
	if _, err := w.Write(make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	return w, done
}

// TestBuiltinKilled: the user may signal what runs as the user. The caller then gets
// an error, and no half of a file.
func TestBuiltinKilled(t *testing.T) {
	testutil.RequireRoot(t)
	b := create(t, boxes.Start(t), engine.Spec{User: engine.User{UID: 1000, GID: 1000}})
	for _, signal := range []string{"KILL", "TERM", "SEGV", "QUIT", "HUP", "PIPE"} {
		end, written := startWrite(t, b)
		script := `for p in /proc/[0-9]*; do tr "\\0" " " <$p/cmdline | grep -q "^boxd-agent files " && kill -` + signal + ` ${p#/proc/} && exit 0; done; exit 1`
		if r, err := engine.Run(t.Context(), b, engine.Command{Args: []string{"sh", "-c", script}}); err != nil || r.ExitCode != 0 {
			t.Fatalf("%+v, %v", r, err)
		}
		if signal == "PIPE" { // what is no pipe's does not end a Go program
			end.Close()
			if err := <-written; err != nil {
				t.Errorf("%s: %v", signal, err)
			}
			continue
		}
		if err := <-written; !errors.Is(err, files.ErrProtocol) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want one line of ErrProtocol", signal, err)
		}
		end.Close()
		if list, _, err := files.List(t.Context(), b, files.Options{}, "/home/box", 0); err != nil || len(list) != 0 {
			t.Errorf("%s: left %+v, %v", signal, list, err)
		}
	}
}

func wantBlocked(t *testing.T, b engine.Box, name string, bait []string) {
	t.Helper()
	var stderr strings.Builder
	try(t, b, name, bait, engine.Command{Stderr: &stderr})
	if stderr.Len() > 0 {
		t.Errorf("stderr: %s", &stderr)
	}
}

// try runs a probe as c says and wants it blocked.
func try(t *testing.T, b engine.Box, name string, bait []string, c engine.Command) {
	t.Helper()
	var out strings.Builder
	c.Args, c.Stdout = append([]string{probeTarget + "/probe", name}, bait...), &out
	r, err := engine.Run(t.Context(), b, c)
	if err != nil {
		t.Fatal(err)
	}
	result := strings.TrimSpace(out.String())
	switch {
	case r.ExitCode == 2 && allowedUntried(name, bait):
		t.Skip(result)
	case r.Verdict != engine.Exited || r.ExitCode != 0 || !strings.HasPrefix(result, "blocked: "):
		t.Errorf("%s (%s, status %d)", result, r.Verdict, r.ExitCode)
	default:
		t.Log(result)
	}
}

// allowedUntried are the probes that not every machine or box can try.
func allowedUntried(name string, bait []string) bool {
	switch name {
	case "root-write":
		return slices.Contains(bait, "root=rw")
	case "host-address":
		return hostAddress() == ""
	case "int80", "x32":
		return runtime.GOARCH != "amd64"
	}
	return false
}

// faultsBare reports whether int 0x80 faults on the bare host: some hypervisors pass it on to no kernel, so no
// filter is asked.
func faultsBare(t *testing.T, program string) bool {
	out, err := exec.CommandContext(t.Context(), program, "child:int80").CombinedOutput()
	return err != nil && strings.Contains(string(out), "SIGSEGV")
}

// wantNoSetid looks at what the probes have left on the host.
func wantNoSetid(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil && info.Mode()&(fs.ModeSetuid|fs.ModeSetgid|fs.ModeDevice) != 0 {
			t.Errorf("%q has mode %v", path, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// TestProbesCanTell runs the probes that do no harm on the bare host, where root
// gets through: a probe that is blocked there by a typing error proves nothing.
func TestProbesCanTell(t *testing.T) {
	testutil.RequireRoot(t)
	program, bait := buildProbe(t), setBait(t)
	// What this kernel may be built without cannot escape.
	absent := []string{"ENOSYS", "ENOENT", "EAFNOSUPPORT", "ENODEV", "ENXIO"}
	for _, name := range probes(t, program, "outside") {
		cmd := exec.CommandContext(t.Context(), program, append([]string{name}, bait...)...)
		cmd.Dir = t.TempDir()
		out, err := cmd.Output()
		result := strings.TrimSpace(string(out))
		if cmd.ProcessState == nil {
			t.Fatalf("%s: %v", name, err)
		}
		_, reason, _ := strings.Cut(result, ": ")
		isAbsent := slices.ContainsFunc(absent, func(errno string) bool { return strings.Contains(reason, errno) })
		switch {
		case strings.HasPrefix(result, "ESCAPED: "):
		case isAbsent || name == "host-address" && hostAddress() == "":
			t.Logf("%s: %s", name, result)
		default:
			t.Errorf("%s: %s: it should be possible here", name, result)
		}
	}
}

// TestWorkingDirectory: a command does not start in /proc, where the descriptors
// of its birth are (CVE-2024-21626).
func TestWorkingDirectory(t *testing.T) {
	testutil.RequireRoot(t)
	b := create(t, boxes.Start(t), engine.Spec{})
	for _, dir := range []string{"/proc", "/proc/self", "/proc/self/fd/0", "/proc/self/fd/3", "/proc/self/fd/7", "/proc/1/cwd", "/proc/1/root", "/proc/self/cwd"} {
		r, err := engine.Run(t.Context(), b, engine.Command{Args: []string{"pwd"}, Dir: dir})
		if err == nil {
			t.Errorf("working directory %q: %+v, want an error", dir, r)
		}
	}
}

// buildProbe returns the path of the program, alone in a directory that every
// user of a box can reach. Where there is no Go, in the virtual machine, it was
// built along with the binaries under test.
func buildProbe(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "probe")
	if built, err := os.ReadFile(filepath.Join(os.Getenv("BOXD_BIN_DIR"), "attack-probe")); err == nil {
		if err := os.WriteFile(path, built, 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	cmd := exec.Command("go", "build", "-o", path, "./probe")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("building the probe: %v\n%s", err, out)
	}
	return path
}

func probes(t *testing.T, program string, which ...string) []string {
	t.Helper()
	out, err := exec.Command(program, append([]string{"list"}, which...)...).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(out))
}

func create(t *testing.T, e *native.Engine, spec engine.Spec) engine.Box {
	t.Helper()
	b, err := e.Create(t.Context(), spec)
	if spec.WritableRoot && err != nil && strings.Contains(err.Error(), "cannot be id-mapped") {
		testutil.RequireFeature(t, "id-mapped root file system", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	// t.Context has ended when clean-ups run.
	t.Cleanup(func() {
		if err := b.Remove(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return b
}
