package containerd

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/testutil"
)

// start starts a launcher whose containerd is at address. The test ends it, and checks what it leaves.
func start(t *testing.T, address string) (e *native.Engine, state string) {
	t.Helper()
	testutil.RequireRoot(t)
	state = testutil.ReachableDir(t, "/run")
	return startIn(t, state, native.Runtimes{Containerd: testutil.BuildContainerd(t), ContainerdAddress: address}), state
}

func startIn(t *testing.T, state string, r native.Runtimes) *native.Engine {
	t.Helper()
	_, init := testutil.BuildBinaries(t)
	e, err := native.Start(t.Context(), native.Options{InitPath: init, StateDir: state, Runtimes: r})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// boxSpec adds the engine to s.
func boxSpec(s engine.Spec) engine.Spec {
	s.Engine, s.Isolation = spec.EngineContainerd, spec.IsolationNamespaces
	return s
}

func create(t *testing.T, e engine.Engine, s engine.Spec) engine.Box {
	t.Helper()
	b, err := e.Create(t.Context(), boxSpec(s))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { remove(t, b) })
	return b
}

func remove(t *testing.T, b engine.Box) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testutil.Patience())
	defer cancel()
	if err := b.Remove(ctx); err != nil {
		t.Error(err)
	}
}

// run runs a command of a shell and returns its output.
func run(t *testing.T, b engine.Box, script string) (engine.Result, string) {
	t.Helper()
	var out strings.Builder
	ctx, cancel := context.WithTimeout(t.Context(), testutil.Patience())
	defer cancel()
	r, err := engine.Run(ctx, b, engine.Command{Args: []string{"/bin/sh", "-c", script}, Stdout: &out, Stderr: &out})
	if err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	return r, out.String()
}

// TestBox is short: that a box keeps all promises of an engine is engine/conformance's to say.
func TestBox(t *testing.T) {
	d := Start(t)
	e, _ := start(t, d.Address)
	b := create(t, e, engine.Spec{Limits: engine.Limits{Memory: 64 << 20, PIDs: 20}, AllowDegraded: true})
	for _, c := range []struct {
		script string
		want   engine.Verdict
	}{
		{"id -u; cat /proc/1/comm", engine.Exited},
		{"exec /usr/bin/python3 -c 'b = bytearray(200 << 20)'", engine.OOM},
		{"for i in $(seq 60); do sleep 30 & done; wait", engine.PIDsLimit},
	} {
		if r, out := run(t, b, c.script); r.Verdict != c.want {
			t.Errorf("%s: %+v, %q", c.script, r, out)
		}
	}
	if list := d.List(); len(list) != 2 || len(d.Shims()) != 1 {
		t.Errorf("one box: containerd has %q and %d shims", list, len(d.Shims()))
	}
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || bytes.Contains(text, []byte("/private/")) {
		t.Errorf("mounts of boxes are visible on the host: %v\n%s", err, text)
	}
	remove(t, b)
	d.AwaitEmpty()
}

// wantRefused checks that a create fails with one line that has words, as engine.ErrNoEngine, and
// that native boxes do not care.
func wantRefused(t *testing.T, e *native.Engine, words string) {
	t.Helper()
	begun := time.Now()
	_, err := e.Create(t.Context(), boxSpec(engine.Spec{}))
	if !errors.Is(err, engine.ErrNoEngine) || !strings.Contains(err.Error(), words) || strings.Contains(err.Error(), "\n") {
		t.Errorf("create: %v: want engine.ErrNoEngine, in one line with %q", err, words)
	}
	if took := time.Since(begun); took > 30*time.Second {
		t.Errorf("create: refused after %v", took)
	}
	b, err := e.Create(t.Context(), engine.Spec{})
	if err != nil {
		t.Fatalf("a native box: %v", err)
	}
	remove(t, b)
}

func TestUnusable(t *testing.T) {
	t.Parallel()
	testutil.RequireRoot(t)
	dir := testutil.ReachableDir(t, "")
	listener, err := net.Listen("unix", filepath.Join(dir, "nobodys.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "dead.sock"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	dead.Close()
	silent, err := net.Listen("unix", filepath.Join(dir, "silent.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	foreign := foreignServer(t, dir)
	versionServer(t, filepath.Join(dir, "old.sock"), "1.5.18~ds1")
	versionServer(t, filepath.Join(dir, "odd.sock"), "unknown")
	if err := errors.Join(
		os.Chown(filepath.Join(dir, "nobodys.sock"), 65534, 65534),
		os.WriteFile(filepath.Join(dir, "file"), nil, 0o600),
		os.WriteFile(filepath.Join(dir, "program"), []byte("#!/bin/sh\nexit 3\n"), 0o700),
		os.WriteFile(filepath.Join(dir, "theirs"), []byte("#!/bin/sh\nexit 3\n"), 0o777),
		os.Chmod(filepath.Join(dir, "theirs"), 0o777),
	); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, address, program, words string
	}{
		{"absent", "absent.sock", "", "no such file"},
		{"dead", "dead.sock", "", "connection refused"},
		{"no socket", "file", "", "must be a socket"},
		{"of another user", "nobodys.sock", "", "belongs to uid 65534"},
		{"served by another user", foreign, "", "uid 65534 listens there"},
		{"silent", "silent.sock", "", "does not answer within 2s"},
		{"too old", "old.sock", "", `it is containerd "1.5.18~ds1", must be 1.6 or later`},
		{"of no version", "odd.sock", "", `it is containerd "unknown", must be 1.6 or later`},
		{"no program", "dead.sock", "absent", "no such file"},
		{"program that ends", "dead.sock", "program", "EOF"},
		{"program of others", "dead.sock", "theirs", "must belong to root and be writable by root only"},
	} {
		t.Run(c.name, func(t *testing.T) {
			program := testutil.BuildContainerd(t)
			if c.program != "" {
				// A directory that others cannot write.
				program = filepath.Join("/run", filepath.Base(dir)+c.program)
				if text, err := os.ReadFile(filepath.Join(dir, c.program)); err == nil {
					info, _ := os.Stat(filepath.Join(dir, c.program))
					if err := errors.Join(os.WriteFile(program, text, 0o700), os.Chmod(program, info.Mode())); err != nil {
						t.Fatal(err)
					}
					defer os.Remove(program)
				}
			}
			e := startIn(t, testutil.ReachableDir(t, "/run"), native.Runtimes{Containerd: program, ContainerdAddress: filepath.Join(dir, c.address)})
			wantRefused(t, e, c.words)
		})
	}
}

// foreignServer has nobody listen at a socket that belongs to root.
func foreignServer(t *testing.T, dir string) (name string) {
	t.Helper()
	sub := filepath.Join(dir, "theirs.d")
	if err := errors.Join(os.Mkdir(sub, 0o755), os.Chown(sub, 65534, 65534)); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(sub, "s")
	// Who listens is the user of the thread that called listen(2), see SO_PEERCRED in unix(7).
	err := linux.OnThrowawayThread(func() error {
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, 65534, 65534, 65534); errno != 0 {
			return os.NewSyscallError("setresuid", errno)
		}
		listener, err := net.Listen("unix", path)
		if err == nil {
			t.Cleanup(func() { listener.Close() })
		}
		return err
	})
	if err == nil {
		err = os.Chown(path, 0, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	return "theirs.d/s"
}

// versionServer serves the version of a containerd, and nothing else, until the end of the test.
func versionServer(t *testing.T, path, version string) {
	t.Helper()
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	// A call of gRPC is a POST over HTTP/2. Its message, here the first field of a VersionResponse, follows
	// a byte for "not compressed" and its length in four (PROTOCOL-HTTP2.md of grpc).
	message := append([]byte{1<<3 | 2, byte(len(version))}, version...)
	server := &http.Server{Protocols: new(http.Protocols), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Trailer", "Grpc-Status")
		if r.URL.Path == "/containerd.services.version.v1.Version/Version" {
			_, _ = w.Write(append([]byte{0, 0, 0, 0, byte(len(message))}, message...))
			w.Header().Set("Grpc-Status", "0")
		} else {
			w.Header().Set("Grpc-Status", "12") // UNIMPLEMENTED
		}
	})}
	server.Protocols.SetUnencryptedHTTP2(true)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { server.Close() })
}

// helpers are the processes boxd-containerd for a state directory.
func helpers(state string) (pids []int) {
	found, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range found {
		line, _ := os.ReadFile(path)
		if args := strings.Split(string(line), "\x00"); args[0] == "boxd-containerd" && slices.Contains(args, state) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			pids = append(pids, pid)
		}
	}
	return pids
}

// TestHanging: containerd is stopped, and later goes on with what it was asked.
func TestHanging(t *testing.T) {
	t.Parallel()
	d := Start(t)
	e, _ := start(t, d.Address)
	kept := create(t, e, engine.Spec{})
	gone := create(t, e, engine.Spec{})
	d.Signal(unix.SIGSTOP)
	if r, out := run(t, kept, "echo yes"); out != "yes\n" {
		t.Errorf("a box during that time: %+v, %q", r, out)
	}
	wantRefused(t, e, "not answer within") // says boxd-containerd, or the launcher of a slow boxd-containerd
	begun := time.Now()
	remove(t, gone)
	if took := time.Since(begun); took > 20*time.Second {
		t.Errorf("removing a box took %v", took)
	}
	d.Signal(unix.SIGCONT)
	remove(t, create(t, e, engine.Spec{})) // it is asked again without being told
	remove(t, kept)
	d.AwaitEmpty() // while there is a launcher that removes what it owes
}

// TestHelper: boxd-containerd is killed, or hangs, while it has something to do and while it has not.
func TestHelper(t *testing.T) {
	t.Parallel()
	d := Start(t)
	e, state := start(t, d.Address)
	create(t, e, engine.Spec{})
	first := helpers(state)
	if len(first) != 1 {
		t.Fatalf("%d helpers", len(first))
	}
	if err := unix.Kill(first[0], unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	create(t, e, engine.Spec{})
	second := helpers(state)
	if len(second) != 1 || second[0] == first[0] {
		t.Fatalf("helpers %v after %v", second, first)
	}
	// It hangs: the request fails in time, and another one is started.
	awaitWithin(t, "the list of engines says so", func() bool { // it may be a second old
		for _, pid := range helpers(state) { // another request may have had the last one replaced
			_ = unix.Kill(pid, unix.SIGSTOP)
		}
		list, err := e.Engines(t.Context(), "", "")
		return err == nil && slices.ContainsFunc(list, func(s engine.EngineState) bool {
			return s.Engine == spec.EngineContainerd && strings.Contains(s.Reason, "boxd-containerd did not answer within")
		})
	})
	awaitWithin(t, "the list of engines says that it works again", func() bool {
		list, err := e.Engines(t.Context(), spec.EngineContainerd, "")
		return err == nil && len(list) == 1 && list[0].Available()
	})
	// It is killed in the middle of a create.
	d.Signal(unix.SIGSTOP)
	failed := make(chan error, 1)
	begin := func() {
		_, err := e.Create(context.Background(), boxSpec(engine.Spec{}))
		failed <- err
	}
	go begin()
	awaitWithin(t, "a helper that works", func() bool {
		if len(helpers(state)) == 1 {
			return true
		}
		if len(failed) > 0 { // refused for the reason of a second ago
			<-failed
			go begin()
		}
		return false
	})
	for _, pid := range helpers(state) {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	if err := <-failed; !errors.Is(err, engine.ErrNoEngine) || strings.Contains(err.Error(), "\n") {
		t.Errorf("a create during that time: %v", err)
	}
	d.Signal(unix.SIGCONT)
}

// awaitWithin waits for what nothing announces.
func awaitWithin(t *testing.T, what string, is func() bool) {
	t.Helper()
	patience := min(testutil.Patience(), time.Minute)
	for end := time.Now().Add(patience); !is(); {
		if time.Now().After(end) {
			t.Fatalf("%s: not after %v", what, patience)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// TestDead: a box does not need containerd, and is removed without it.
func TestDead(t *testing.T) {
	t.Parallel()
	d := Start(t)
	e, state := start(t, d.Address)
	kept, gone := create(t, e, engine.Spec{}), create(t, e, engine.Spec{})
	d.Kill()
	if r, out := run(t, kept, "echo yes"); out != "yes\n" {
		t.Errorf("a box without containerd: %+v, %q", r, out)
	}
	remove(t, gone)
	wantRefused(t, e, "connection refused")
	if owed, _ := os.ReadDir(filepath.Join(state, "containerd")); len(owed) < 2 {
		t.Errorf("containers to be removed later and kept: %v", owed)
	}
	d.Restart()
	if r, out := run(t, kept, "echo yes"); out != "yes\n" {
		t.Errorf("a box after the restart: %+v, %q", r, out)
	}
	remove(t, kept)
	d.AwaitEmpty()
}

// TestDeadShim: containerd cleans up after a shim that died, so the box is lost. Without
// containerd it lives on, with all that it has.
func TestDeadShim(t *testing.T) {
	t.Parallel()
	d := Start(t)
	e, _ := start(t, d.Address)
	lost := create(t, e, engine.Spec{})
	for _, pid := range d.Shims() {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	select {
	case <-lost.Done():
	case <-time.After(testutil.Patience()):
		t.Error("the box is still there")
	}
	if _, err := engine.Run(t.Context(), lost, engine.Command{Args: []string{"/bin/true"}}); !errors.Is(err, engine.ErrBoxLost) {
		t.Errorf("a command in it: %v", err)
	}
	remove(t, lost)
	d.AwaitEmpty()
	kept := create(t, e, engine.Spec{})
	d.Kill()
	for _, pid := range d.Shims() {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	if r, out := run(t, kept, "echo yes"); out != "yes\n" {
		t.Errorf("a box without containerd and shim: %+v, %q", r, out)
	}
	remove(t, kept)
	d.Restart()
	d.AwaitEmpty()
}

// TestKilledInBirth kills containerd, boxd-containerd or the launcher at some moment of a create.
func TestKilledInBirth(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	d := Start(t)
	rounds := 4
	if testutil.Full() {
		rounds = 40
	}
	for victim, kill := range map[string]func(e *native.Engine, state string){
		"containerd": func(*native.Engine, string) { d.Kill() },
		"helper": func(_ *native.Engine, state string) {
			for _, pid := range helpers(state) {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		},
		"shim": func(*native.Engine, string) {
			for _, pid := range d.Shims() {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		},
	} {
		t.Run(victim, func(t *testing.T) {
			e, state := start(t, d.Address)
			remove(t, create(t, e, engine.Spec{}))
			for round := range rounds {
				made := make(chan error, 1)
				go func() {
					b, err := e.Create(context.Background(), boxSpec(engine.Spec{}))
					if err == nil {
						err = b.Remove(context.Background())
					}
					made <- err
				}()
				time.Sleep(time.Duration(round) * 120 * time.Millisecond / time.Duration(rounds)) // a moment, not an event
				kill(e, state)
				if err := <-made; err != nil && strings.Contains(err.Error(), "\n") {
					t.Errorf("round %d: %v: not one line", round, err)
				} else {
					t.Logf("round %d: %v", round, err)
				}
				if victim == "containerd" {
					d.Restart()
				}
				awaitWithin(t, "a box after that", func() bool {
					b, err := e.Create(t.Context(), boxSpec(engine.Spec{}))
					if err == nil {
						remove(t, b)
					}
					return err == nil
				})
				if victim == "containerd" {
					// If it was killed before it knew its shim's address, the directory of the bundle
					// stays until its next start, which boxd cannot change: it does not know where.
					d.AwaitNoRecords()
					d.Kill()
					d.Restart()
				}
				d.AwaitEmpty()
			}
		})
	}
}

// TestKilledLauncher: the next launcher removes what containerd has of the boxes.
func TestKilledLauncher(t *testing.T) {
	t.Parallel()
	d := Start(t)
	_, init := testutil.BuildBinaries(t)
	state := testutil.ReachableDir(t, "/run")
	r := native.Runtimes{Containerd: testutil.BuildContainerd(t), ContainerdAddress: d.Address}
	e, err := native.Start(t.Context(), native.Options{InitPath: init, StateDir: state, Runtimes: r})
	if err != nil {
		t.Fatal(err)
	}
	b, err := e.Create(t.Context(), boxSpec(engine.Spec{}))
	if err != nil {
		t.Fatal(err)
	}
	killed := 0
	found, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range found {
		if args, _ := os.ReadFile(path); bytes.HasPrefix(args, []byte("boxd-init\x00launcher\x00")) && bytes.Contains(args, []byte(state)) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			if err := unix.Kill(pid, unix.SIGKILL); err != nil {
				t.Error(err)
			}
			killed++
		}
	}
	if killed != 1 {
		t.Fatalf("%d launchers", killed)
	}
	<-b.Done()
	_ = e.Close() // it says that the launcher is lost
	if list := d.List(); len(list) != 2 {
		t.Errorf("containerd has %q of the killed launcher: the test shows nothing", list)
	}
	startIn(t, state, r) // asks for no box of containerd's
	d.AwaitEmpty()
	awaitWithin(t, "an empty directory", func() bool {
		_, err := os.Stat(filepath.Join(state, "containerd"))
		return errors.Is(err, os.ErrNotExist)
	})
}
