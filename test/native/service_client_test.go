package native

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native"
	"github.com/boxd/boxd/internal/testutil"
)

// clientEnv makes the test binary a client of the service whose socket it names.
const clientEnv = "BOXD_TEST_SERVICE_CLIENT"

// strangerUID is a user without any privilege.
const strangerUID = 54321

func init() {
	socket := os.Getenv(clientEnv)
	if socket == "" {
		return
	}
	awaitAdmission()
	if err := playClient(socket); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(0)
}

// playClient does what a daemon does, then waits for its end on standard input.
func playClient(socket string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s, err := native.Connect(ctx, native.ServiceOptions{Socket: socket})
	if err != nil {
		return err
	}
	b, err := s.Create(ctx, engine.Spec{ID: "of-a-client"})
	if err != nil {
		return err
	}
	var out strings.Builder
	r, err := engine.Run(ctx, b, engine.Command{Args: []string{"sh", "-c", "cat; id -u; cat /dev/stdin"}, Stdin: strings.NewReader("in "), Stdout: &out})
	if err != nil || r.ExitCode != 0 || out.String() != "in 0\n" {
		return fmt.Errorf("command: %+v, %q: %w", r, out.String(), err)
	}
	r, err = engine.Run(ctx, b, engine.Command{Args: []string{"test", "-t", "1"}, TTY: &engine.WindowSize{Rows: 1, Cols: 1}})
	if err != nil || r.ExitCode != 0 {
		return fmt.Errorf("command with terminal: %+v: %w", r, err)
	}
	_, perr := b.Ports()
	_, uerr := b.Usage()
	if err := errors.Join(perr, uerr, s.Health(ctx), b.Update(ctx, engine.Change{Limits: &engine.Limits{PIDs: 50}})); err != nil {
		return err
	}
	if _, err := b.Start(ctx, engine.Command{Args: []string{"sleep", "1000"}}); err != nil {
		return err
	}
	if err := releaseSome(ctx, b); err != nil {
		return err
	}
	fmt.Println("done")
	_, err = io.ReadAll(os.Stdin)
	return err
}

// releaseSome starts a process and releases a part of its output in two steps. The first is sent to the agent
// immediately.
func releaseSome(ctx context.Context, b engine.LiveBox) error {
	p, err := b.Launch(ctx, managedShell("talks", "seq -w 1000; exec sleep 1000"))
	if err != nil {
		return err
	}
	out := p.Stdio().Stdout
	for off := int64(0); off < 5000; {
		n, at, err := out.ReadAt(ctx, make([]byte, 5000), off)
		if err != nil {
			return err
		}
		off = at + int64(n)
	}
	out.Release(1000)
	out.Release(2000)
	return nil
}

// admitted starts cmd as uid, which calls awaitAdmission, and makes it the process that the
// launcher at socket serves.
func admitted(t *testing.T, cmd *exec.Cmd, socket string, uid int) {
	t.Helper()
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	cmd.Dir = "/"
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := native.AdmitClient(filepath.Dir(socket), cmd.Process.Pid); err != nil {
		t.Error(err)
	}
	if _, err := in.Write([]byte{'\n'}); err != nil {
		t.Error(err)
	}
}

// awaitAdmission waits until the launcher knows of this process.
func awaitAdmission() { _, _ = os.Stdin.Read(make([]byte, 1)) }

// startClient runs playClient as uid and returns when it is done.
func startClient(t *testing.T, socket string, uid int) (*exec.Cmd, string) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), clientEnv+"="+socket)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	admitted(t, cmd, socket, uid)
	line, _ := bufio.NewReader(out).ReadString('\n')
	return cmd, strings.TrimSpace(line)
}

// TestServiceUnprivilegedClient: all that a daemon asks for works without privilege;
// when it is killed, the next one gets its box, and its commands end.
func TestServiceUnprivilegedClient(t *testing.T) {
	testutil.Long(t)
	dir := stateDir(t)
	socket := startService(t, dir, strangerUID)
	cmd, said := startClient(t, socket, strangerUID)
	t.Cleanup(func() { _ = cmd.Wait() })
	if said != "done" {
		t.Fatalf("client: %s", said)
	}
	_, err := native.Connect(shortly(t), native.ServiceOptions{Socket: socket})
	if !errors.Is(err, engine.ErrNoLauncher) || !strings.Contains(err.Error(), "another client") {
		t.Errorf("a second client: %v", err)
	}
	_ = cmd.Process.Kill()
	b := adoptLive(t, connect(t, socket), "of-a-client")
	talks := b.Managed()[0]
	// What was released just before a client is killed, its agent may not know of.
	if got := talks.Stdio().Stdout.Released(); got != 1000 && got != 2000 {
		t.Errorf("released %d", got)
	}
	if err := talks.Control().Kill(patient(t)); err != nil {
		t.Error(err)
	}
	await(t, talks)
	if pids := commands(t, b); len(pids) > 0 {
		t.Errorf("still running after the client was killed and the box adopted: %v", pids)
	}
	if l := b.Spec().Limits.PIDs; l != 50 {
		t.Errorf("pids limit is %d", l)
	}
	wantOutput(t, b, "echo on", "on\n")
}

// shortly is a context for what must not take long to fail.
func shortly(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

// TestServiceRefusesStrangers: neither the mode of the socket nor the launcher lets
// other users in.
func TestServiceRefusesStrangers(t *testing.T) {
	dir := stateDir(t)
	socket := startService(t, dir, strangerUID)
	if cmd, said := startClient(t, socket, strangerUID+1); !strings.Contains(said, "permission denied") {
		t.Errorf("another user: %s", said)
		_ = cmd.Wait()
	} else {
		_ = cmd.Wait()
	}
	if err := os.Chmod(socket, 0o666); err != nil {
		t.Fatal(err)
	}
	cmd, said := startClient(t, socket, strangerUID+1)
	_ = cmd.Wait()
	if !strings.Contains(said, "this launcher serves uid") {
		t.Errorf("another user, let in by the mode: %s", said)
	}
}

// TestServiceGarbage: an invalid request ends its connection and nothing else.
func TestServiceGarbage(t *testing.T) {
	dir := stateDir(t)
	socket := startService(t, dir, 0)
	rng := rand.New(rand.NewPCG(seedOf(t), 0))
	for i := range 200 {
		conn, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		noise := make([]byte, rng.IntN(200))
		for i := range noise {
			noise[i] = byte(rng.Uint32())
		}
		if i%2 == 0 && len(noise) > 12 { // a frame
			body := fmt.Sprintf(`{"ID":%q,"Slot":"../../x","Slots":["..","/"],"Count":-1}`, "../x")
			noise = append([]byte{byte(len(body)), 0, 0, 0, byte(64 + rng.IntN(24)), 0, 0, 0, 1, 0, 0, 0}, body...)
			if noise[4] == 75 {
				noise[4] = 74 // not Stop
			}
		}
		_, _ = conn.Write(noise)
		conn.Close()
	}
	s := connect(t, socket)
	wantOutput(t, createLive(t, s, engine.Spec{}), "echo well", "well\n")
}

func seedOf(t *testing.T) uint64 {
	t.Helper()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return seed
}

// TestServiceTwoStateDirs: two services do not know of each other, nor does a launcher
// for one client that sweeps the same directory.
func TestServiceTwoStateDirs(t *testing.T) {
	testutil.Long(t)
	one, dir := newService(t)
	two, _ := newService(t)
	a, b := createLive(t, one, engine.Spec{ID: "both"}), createLive(t, two, engine.Spec{ID: "both"})
	if err := b.Remove(t.Context()); err != nil {
		t.Error(err)
	}
	killLauncher(t, dir)
	killLauncher(t, dir)
	e, err := startWith(t, initPath(t), dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	wantOutput(t, a, "echo here", "here\n")
	if err := one.Health(t.Context()); err != nil {
		t.Error(err)
	}
}

func initPath(t *testing.T) string {
	t.Helper()
	_, path := testutil.BuildBinaries(t)
	return path
}

// TestServiceRecords: a box whose record is not provably ours is removed, and no other box is affected.
func TestServiceRecords(t *testing.T) {
	testutil.Long(t)
	edit := func(change func(r map[string]any)) func([]byte) []byte {
		return func(text []byte) []byte {
			var r map[string]any
			if err := json.Unmarshal(text, &r); err != nil {
				t.Fatal(err)
			}
			change(r)
			text, _ = json.Marshal(r)
			return text
		}
	}
	for _, c := range []struct {
		name   string
		change func([]byte) []byte // nil: it is removed
		lives  bool
	}{
		{"untouched", func(b []byte) []byte { return b }, true},
		{"missing", nil, false},
		{"empty", func([]byte) []byte { return nil }, false},
		{"cut", func(b []byte) []byte { return b[:len(b)/2] }, false},
		{"garbage", func([]byte) []byte { return []byte("\x00\xff{}[") }, false},
		{"another boot", edit(func(r map[string]any) { r["BootID"] = "x" }), false},
		{"another start", edit(func(r map[string]any) { r["Start"] = r["Start"].(float64) + 1 }), false},
		{"another process", edit(func(r map[string]any) { r["PID"] = os.Getpid() }), false},
		{"another id range", edit(func(r map[string]any) { r["IDBase"] = r["IDBase"].(float64) + 65536 }), false},
		{"another box", edit(func(r map[string]any) { r["ID"] = "other" }), false},
		{"a cgroup of others", edit(func(r map[string]any) { r["Cgroup"] = "../.." }), false},
		{"another version", edit(func(r map[string]any) { r["Version"] = r["Version"].(float64) + 1 }), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, dir := newService(t)
			b := createLive(t, s, engine.Spec{ID: "box"})
			if err := s.Stop(t.Context(), false); err != nil {
				t.Fatal(err)
			}
			found, _ := filepath.Glob(filepath.Join(dir, "run-*", "boxes", "box", "box.json"))
			if len(found) != 1 {
				t.Fatalf("records: %q", found)
			}
			text, err := os.ReadFile(found[0])
			if err != nil {
				t.Fatal(err)
			}
			if c.change == nil {
				err = os.Remove(found[0])
			} else {
				err = os.WriteFile(found[0], c.change(text), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			waitUntil(t, "the old launcher has ended", func() bool { return len(serviceProcesses(t, "keeper", dir)) == 0 })
			socket, err := tryStartService(t, dir, 0)
			if err != nil {
				t.Fatal(err)
			}
			ids, err := connect(t, socket).Boxes(t.Context())
			if lives := len(ids) == 1; err != nil || lives != c.lives {
				t.Errorf("boxes: %q, %v", ids, err)
			}
			if pids := initPIDs(t, b); len(pids) > 0 != c.lives {
				t.Errorf("PID 1 is %q", pids)
			}
		})
	}
}

// TestServiceChaos kills the launcher at random moments while boxes are made, used,
// changed and removed. Nobody notices but by a delay.
func TestServiceChaos(t *testing.T) {
	testutil.Long(t)
	s, dir := newService(t)
	kills := 20
	if testing.Short() {
		kills = 6
	}
	old := createLive(t, s, engine.Spec{ID: "old"})
	_, m := workspace(t, 0, 0)
	ctx, end := context.WithCancel(t.Context())
	defer end()
	var users sync.WaitGroup
	for n := range 3 {
		users.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				if err := useBox(t.Context(), s, fmt.Sprintf("user%d-%d", n, i), m); err != nil {
					t.Errorf("user %d, box %d: %v", n, i, err)
					return
				}
			}
		})
	}
	users.Go(func() {
		for ctx.Err() == nil {
			if err := changeBox(t.Context(), old, m); err != nil {
				t.Errorf("the old box: %v", err)
				return
			}
		}
	})
	rng := rand.New(rand.NewPCG(seedOf(t), 0))
	for range kills {
		time.Sleep(time.Duration(rng.IntN(400)) * time.Millisecond)
		killLauncher(t, dir)
	}
	end()
	users.Wait()
	wantOutput(t, old, "echo still", "still\n")
	if ids, err := s.Boxes(t.Context()); err != nil || len(ids) != 1 {
		t.Errorf("boxes in the end: %q, %v", ids, err)
	}
}

// useBox is the life of a box. If id is empty, the engine chooses one.
func useBox(ctx context.Context, s *native.Service, id string, m engine.Mount) error {
	b, err := s.Create(ctx, engine.Spec{ID: id, Mounts: []engine.Mount{m}})
	if err != nil {
		return err
	}
	for range 3 {
		var out strings.Builder
		r, err := engine.Run(ctx, b, engine.Command{Args: []string{"echo", b.ID()}, Stdout: &out})
		if err != nil || r.Verdict != engine.Exited || out.String() != b.ID()+"\n" {
			return errors.Join(fmt.Errorf("command: %+v, output %q", r, out.String()), err, b.Remove(ctx))
		}
	}
	return errors.Join(changeBox(ctx, b, engine.Mount{Source: m.Source, Target: "/more"}), b.Remove(ctx))
}

// changeBox attaches and detaches a mount and changes a limit.
func changeBox(ctx context.Context, b engine.Box, m engine.Mount) error {
	err := b.Update(ctx, engine.Change{Attach: []engine.Mount{m}, Limits: &engine.Limits{PIDs: 40 + rand.Int64N(40)}})
	if err != nil {
		return err
	}
	return b.Update(ctx, engine.Change{Detach: []string{m.Target}})
}
