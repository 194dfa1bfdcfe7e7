package crash

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/testutil"
	"github.com/boxd/boxd/relay"
	"github.com/boxd/boxd/test/daemon"
)

// standing is how many sessions live through the whole test.
const standing = 4

// fixed is what must never change in a session: its box and the pids of its
// processes.
type fixed struct {
	box  string
	pids map[string]int
}

// TestCrash tests the main promise: whatever dies outside of the boxes, processes in them keep running,
// and no client sees less, more or other than what happened.
func TestCrash(t *testing.T) {
	testutil.RequireRoot(t)
	few := int64(15)
	if testutil.Full() {
		few = 200
	}
	rounds := number(t, "BOXD_CRASH_ROUNDS", few)
	if testing.Short() {
		rounds = min(rounds, 8)
	}
	if os.Getenv("BOXD_TEST_VM") != "" {
		rounds = min(rounds, 2) // emulation is slow: how cgroup v2 differs shows in one
	}
	seed, random := seeded(t, rounds)

	w := newWorld(t, "")
	sessions := w.populate(seed)
	stats := &recovery{}
	for round := range int(rounds) {
		kill := victims[random.IntN(len(victims))]
		// The random part is how far everything has got at this moment.
		pause(nil, time.Duration(random.Int64N(int64(120*time.Millisecond))))
		w.round(round, kill, random, sessions, stats)
		if err := w.failure(); err != nil {
			t.Fatalf("round %d (%v killed): %v\nthe daemon's log ends with:\n%s", round, kill, err, w.daemon.LogTail(40))
		}
	}
	w.end(sessions)
	t.Logf("%d execs with the right exit code, %d requests cut off, %d sessions made and removed, %d made sensitive, %d MB relayed",
		w.execs.Load(), w.cut.Load(), w.churned.Load(), w.ratcheted.Load(), w.bytes.Load()>>20)
	t.Log(stats)
}

// seeded returns a source of choices that can be repeated, and its seed.
func seeded(t *testing.T, rounds int64) (uint64, *rand.Rand) {
	seed := uint64(number(t, "BOXD_CRASH_SEED", time.Now().UnixNano()))
	t.Logf("%d rounds; to see the same again: BOXD_CRASH_SEED=%d", rounds, seed)
	return seed, rand.New(rand.NewPCG(seed, 0))
}

// victims are the processes to kill in a round; some are listed more often. A daemon cannot replace a
// killed keeper: only root can, when it starts the daemon again.
var victims = []victim{
	{daemon: true}, {daemon: true}, {daemon: true}, {daemon: true},
	{launcher: true}, {launcher: true}, {launcher: true},
	{daemon: true, launcher: true}, {daemon: true, launcher: true},
	{daemon: true, keeper: true},
	{daemon: true, launcher: true, keeper: true},
}

type victim struct{ daemon, launcher, keeper bool }

func (v victim) String() string {
	var names []string
	for name, is := range map[string]bool{"daemon": v.daemon, "launcher": v.launcher, "keeper": v.keeper} {
		if is {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return fmt.Sprint(names)
}

// newWorld starts a daemon that forgets nothing of its history, with more configuration.
func newWorld(t *testing.T, more string) *world {
	boxd, init := testutil.BuildBinaries(t)
	dir := testutil.ReachableDir(t, "")
	config := filepath.Join(dir, "boxd.yaml")
	writeConfig(t, config, more)
	d, err := daemon.Start(daemon.Config{Boxd: boxd, Init: init, Dir: dir, Args: []string{"--config", config}})
	if err != nil {
		t.Fatal(err)
	}
	c, err := d.Client()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	w := &world{t: t, daemon: d, client: c, ctx: ctx, stop: make(chan struct{}), books: newBooks(c)}
	t.Cleanup(func() {
		if !w.stopping() { // the test has failed
			close(w.stop)
			cancel()
			w.actors.Wait()
			w.sweep()
		}
		cancel()
		c.Close()
	})
	return w
}

// writeConfig writes the configuration of a daemon, with more of it. Sessions with the profile warm keep Python
// warm.
func writeConfig(t *testing.T, path, more string) {
	text := "history: {session_entries: 1000000, session_size: 1G, tenant_size: 1T}\n" +
		"profiles: {default: {keep_output: 64K}, warm: {keep_output: 64K, zygotes: [{name: python, command: [python3], match: true}]}}\n" + more
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// sweep ends a daemon whose test has failed, with all of its sessions.
func (w *world) sweep() {
	_ = w.daemon.Kill()
	w.daemon.Args = append(w.daemon.Args, "--stop-sessions")
	if err := w.daemon.Start(); err != nil {
		w.t.Error(err)
		return
	}
	if err := w.daemon.Stop(); err != nil {
		w.t.Error(err)
	}
}

// populate makes the sessions and their processes and sets the actors to work.
func (w *world) populate(seed uint64) map[string]fixed {
	sessions := map[string]fixed{}
	persistent := true
	for i := range standing {
		id := fmt.Sprintf("standing-%d", i)
		if _, err := w.client.Ensure(w.ctx, apitypes.SessionRequest{ID: id, SessionSpec: apitypes.SessionSpec{LiveWishes: spec.LiveWishes{Persistent: &persistent}}}); err != nil {
			w.t.Fatal(err)
		}
		if r, err := w.client.Exec(w.ctx, id, apitypes.ExecRequest{Argv: []string{"sh", "-c", "touch /tmp/mark", w.books.ask(id)}}); err != nil || r.Status != 0 {
			w.t.Fatalf("preparing session: %+v, %v", r, err)
		}
		for _, p := range []apitypes.ProcessRequest{
			{ID: "chatter", Argv: []string{"python3", "-c", chatter}},
			{ID: "monologue", Argv: []string{"python3", "-c", monologue}, TTY: &apitypes.WindowSize{Rows: 24, Cols: 80}},
			{ID: "echo", Argv: []string{"cat"}},
		} {
			w.books.askProcess(id, p.ID, 1)
			if _, err := w.client.Start(w.ctx, id, p); err != nil {
				w.t.Fatalf("starting %s: %v", p.ID, err)
			}
		}
		w.follow(id, "chatter", true, false)
		w.follow(id, "monologue", true, true)
		w.talk(w.follow(id, "echo", true, false), "echo of "+id)
		w.exec(id, seed+uint64(i))
		sessions[id] = w.look(id)
	}
	w.churn("churn")
	if _, err := w.client.CreateVolume(w.ctx, apitypes.VolumeRequest{Name: secret, Size: 1 << 20, Sensitive: true}); err != nil {
		w.t.Fatal(err)
	}
	w.ratchet("ratchet")
	return sessions
}

// look notes what must stay as it is.
func (w *world) look(session string) fixed {
	s, err := w.client.Session(w.ctx, session)
	if err != nil {
		w.t.Fatalf("session %s: %v", session, err)
	}
	if s.State != "running" {
		w.t.Errorf("session %s is %s (%s), must be running", session, s.State, s.Reason)
	}
	f := fixed{box: s.Box, pids: map[string]int{}}
	processes, err := w.client.Processes(w.ctx, session)
	if err != nil {
		w.t.Fatalf("processes of session %s: %v", session, err)
	}
	for _, p := range processes {
		if p.State == "running" {
			f.pids[p.ID] = p.PID
		}
	}
	return f
}

// round kills, starts again, and checks.
func (w *world) round(n int, v victim, random *rand.Rand, sessions map[string]fixed, stats *recovery) {
	session := fmt.Sprintf("standing-%d", random.IntN(standing))
	quitter := apitypes.ProcessRequest{ID: fmt.Sprintf("quitter-%d", n)}
	code := random.IntN(256)
	quitter.Argv = []string{"sh", "-c", fmt.Sprintf("echo 0; sleep 0.0%d; echo 1; exit %d", random.IntN(10), code)}
	mark := w.books.askProcess(session, quitter.ID, 1)
	if _, err := w.client.Start(w.ctx, session, quitter); err != nil {
		w.t.Fatalf("round %d: starting %s: %v", n, quitter.ID, err)
	}
	pause(nil, time.Duration(random.Int64N(int64(60*time.Millisecond))))
	w.kill(v)
	if v.daemon {
		w.start(stats)
	}
	for id, want := range sessions {
		got := w.look(id)
		for name, pid := range want.pids {
			if got.pids[name] != pid {
				w.t.Errorf("round %d (%v killed): %s of %s has pid %d, had %d", n, v, name, id, got.pids[name], pid)
			}
		}
		if got.box != want.box {
			w.t.Errorf("round %d (%v killed): %s has box %s, had %s", n, v, id, got.box, want.box)
		}
	}
	w.checkQuitter(n, session, quitter.ID, code)
	w.books.note(mark, code, "exited", nil)
	for _, err := range w.books.audit(w.ctx) {
		w.t.Errorf("round %d (%v killed): %v", n, v, err)
	}
	if w.t.Failed() {
		w.fail("see above")
	}
}

// start runs the killed daemon again.
func (w *world) start(stats *recovery) {
	began := time.Now()
	if err := w.daemon.Start(); err != nil {
		w.t.Fatal(err)
	}
	stats.add(time.Since(began))
	w.phase.Add(1)
	if len(w.daemon.Find(daemon.Keeper)) == 0 {
		w.t.Errorf("the daemon is ready, and nothing would restart its launcher")
	}
}

// checkQuitter reads the whole output of a process that ends by itself, late, and
// how it ended, and forgets it.
func (w *world) checkQuitter(n int, session, id string, code int) {
	exit, err := w.readToExit(session, id, 2)
	if err != nil {
		w.t.Fatalf("round %d: relay of %s: %v", n, id, err)
	}
	p, err := w.client.Process(w.ctx, session, id)
	if err != nil {
		w.t.Fatalf("round %d: %s: %v", n, id, err)
	}
	if exit.Code != code || p.ExitCode == nil || *p.ExitCode != code || p.Verdict != "exited" || p.State != "exited" {
		w.t.Errorf("round %d: %s: %+v and %+v, must have exited with %d", n, id, exit, p, code)
	}
	if err := w.client.RemoveProcess(w.ctx, session, id); err != nil {
		w.t.Errorf("round %d: removing %s: %v", n, id, err)
	}
}

// readToExit observes a process that writes a number of lines, to its end.
func (w *world) readToExit(session, id string, want int64) (relay.Exit, error) {
	a, err := w.client.Attach(w.ctx, session, id, client.AttachOptions{})
	if err != nil {
		return relay.Exit{}, err
	}
	defer a.Close()
	out := &lines{}
	for {
		e, err := a.Recv()
		if err != nil {
			return relay.Exit{}, err
		}
		switch e := e.(type) {
		case relay.Data:
			if err := out.add(e.Bytes); err != nil {
				return relay.Exit{}, err
			}
		case relay.Gap:
			return relay.Exit{}, fmt.Errorf("lost bytes %d to %d", e.From, e.To)
		case relay.Exited:
			if out.next != want {
				return e.Exit, fmt.Errorf("%d lines, must be %d", out.next, want)
			}
			return e.Exit, nil
		}
	}
}

// kill ends what v names, all at once, and waits for the end: a daemon that starts while a keeper is about to
// die would rely on it.
func (w *world) kill(v victim) {
	var pids []int
	if v.keeper {
		pids = append(pids, w.daemon.Find(daemon.Keeper)...)
	}
	if v.launcher {
		pids = append(pids, w.daemon.Find(daemon.Launcher)...)
	}
	if v.daemon {
		w.phase.Add(1)
	}
	var dying []*os.File
	for _, pid := range pids {
		if f, err := linux.PidfdOpen(pid); err == nil { // or it has ended
			_ = linux.PidfdSignal(f, syscall.SIGKILL) // likewise
			dying = append(dying, f)
		}
	}
	w.kills += len(dying)
	if v.daemon {
		w.kills++
		if err := w.daemon.Kill(); err != nil {
			w.t.Error(err)
		}
	}
	for _, f := range dying {
		if ended, err := linux.HasExited(f, time.Minute); !ended {
			w.t.Errorf("a process survives SIGKILL: %v", err)
		}
		f.Close()
	}
}

// settle reads the whole history of a tenant again and compares it with the usage. All its clients have ended.
func (w *world) settle(b *books) {
	b.forget()
	for _, err := range b.settle(w.ctx) {
		w.t.Error(err)
	}
}

// end stops everything in order, and checks that nothing is left.
func (w *world) end(sessions map[string]fixed) {
	for id := range sessions {
		w.look(id)
	}
	close(w.stop)
	for id := range sessions {
		if err := w.client.Remove(w.ctx, id); err != nil {
			w.t.Errorf("removing %s: %v", id, err)
		}
	}
	w.actors.Wait()
	if err := w.client.RemoveVolume(w.ctx, secret); err != nil {
		w.t.Errorf("removing volume %s: %v", secret, err)
	}
	w.settle(w.books)
	w.shut()
}

// shut stops the daemon, whose sessions are removed, and checks that nothing is left.
func (w *world) shut() {
	if left, err := w.client.Sessions(w.ctx); err != nil || len(left) != 0 {
		w.t.Errorf("sessions that are left: %+v, %v", left, err)
	}
	if err := w.daemon.Stop(); err != nil {
		w.t.Error(err)
	}
	for _, pattern := range []string{"run/run-*/boxes/*", "run/ids/*", "workspaces/*/*"} {
		left, _ := filepath.Glob(filepath.Join(w.daemon.State(), pattern))
		for _, name := range left {
			w.t.Errorf("left behind: %s", name)
		}
	}
}
