package crash

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/testutil"
)

// TestVolumes kills while volumes are created, attached, detached, resized, copied, removed,
// exported and imported, and while TTLs end sessions that are retained. Afterwards no volume is
// writable in two boxes, what was acknowledged is there, the quotas equal what exists, and no
// loop device, mount or file is left.
func TestVolumes(t *testing.T) {
	testutil.RequireRoot(t)
	rounds := number(t, "BOXD_CRASH_ROUNDS", 5)
	if testutil.Full() {
		rounds = number(t, "BOXD_CRASH_ROUNDS", 60)
	}
	if os.Getenv("BOXD_TEST_VM") != "" {
		rounds = min(rounds, 2) // emulation is slow
	}
	seed := uint64(number(t, "BOXD_CRASH_SEED", time.Now().UnixNano()))
	t.Logf("%d rounds; to see the same again: BOXD_CRASH_SEED=%d", rounds, seed)
	random := rand.New(rand.NewPCG(seed, 0))

	w := &volumeWorld{world: newWorld(t, ""), logged: map[string]int{}}
	w.prepare()
	w.contend("left")
	w.contend("right")
	w.build("one", seed+1)
	w.build("two", seed+2)
	w.transfer()
	w.expire()
	for round := range int(rounds) {
		kill := victims[random.IntN(len(victims))]
		pause(nil, 20*time.Millisecond+time.Duration(random.Int64N(int64(400*time.Millisecond))))
		w.kill(kill)
		if kill.daemon {
			if err := w.daemon.Start(); err != nil {
				t.Fatalf("round %d (%v killed): %v", round, kill, err)
			}
			w.phase.Add(1)
		}
		w.quiet.Lock() // everything that was asked for has been answered
		w.check()
		w.quiet.Unlock()
		if err := w.failure(); err != nil || t.Failed() {
			t.Fatalf("round %d (%v killed): %v\nthe daemon's log ends with:\n%s", round, kill, err, w.daemon.LogTail(40))
		}
	}
	w.endVolumes()
	t.Logf("%d requests cut off, %d volumes made and removed, %d exported and imported, %d lines written by two sessions in turn, %d sessions retained",
		w.cut.Load(), w.churned.Load(), w.bytes.Load(), w.logged["left"]+w.logged["right"], w.execs.Load())
}

// volumeWorld counts volumes in churned, transfers in bytes, and revivals in execs.
type volumeWorld struct {
	*world
	quiet sync.RWMutex // held by an actor while it does something

	// copies: volumes are images and not directories with project quota, which cannot be copied.
	copies bool

	logMu  sync.Mutex
	logged map[string]int // lines in the volume "shared" that a session has been told of
}

// actor repeats step until the test ends.
func (w *volumeWorld) actor(step func(n int)) {
	w.act(func() {
		for n := 0; !w.stopping() && w.failure() == nil; n++ {
			w.quiet.RLock()
			step(n)
			w.quiet.RUnlock()
			pause(w.stop, time.Millisecond)
		}
	})
}

// until repeats a request until it is answered with success, or with one of codes, which it
// returns.
func (w *volumeWorld) until(what string, codes []string, request func() error) string {
	for end := time.Now().Add(2 * time.Minute); ; pause(nil, 5*time.Millisecond) {
		before := w.phase.Load()
		err := request()
		var answer *client.Error
		switch {
		case err == nil:
			return ""
		case errors.As(err, &answer) && slices.Contains(codes, answer.Problem.Code):
			return answer.Problem.Code
		case errors.As(err, &answer) && answer.Problem.Code == apitypes.CodeState: // what was cut off is being removed
		case errors.As(err, &answer) && answer.Problem.Code == apitypes.CodeVolumeInUse: // by a box that is being removed
		case !w.forgiven(err, before):
			w.fail("%s: %w", what, err)
			return "failed"
		}
		if time.Now().After(end) {
			w.fail("%s: still %w", what, err)
			return "failed"
		}
	}
}

func (w *volumeWorld) create(r apitypes.VolumeRequest) {
	w.until("creating "+r.Name, nil, func() error { _, err := w.client.CreateVolume(w.ctx, r); return err })
}

func (w *volumeWorld) remove(name string) {
	w.until("removing "+name, []string{apitypes.CodeVolumeNotFound}, func() error { return w.client.RemoveVolume(w.ctx, name) })
}

func (w *volumeWorld) endSession(id string) {
	w.until("ending "+id, []string{apitypes.CodeSessionNotFound}, func() error { return w.client.Remove(w.ctx, id) })
}

// run runs an idempotent command until it has run to its end, and returns its output.
func (w *volumeWorld) run(session, line string, volumes ...apitypes.SessionVolume) (out string) {
	w.until("running in "+session, nil, func() error {
		if _, err := w.client.Ensure(w.ctx, apitypes.SessionRequest{ID: session, SessionSpec: apitypes.SessionSpec{Volumes: volumes}}); err != nil {
			return err
		}
		r, err := w.client.Exec(w.ctx, session, apitypes.ExecRequest{Shell: line})
		if err == nil && r.Status != 0 {
			w.fail("running %q in %s: %s", line, session, describe(r))
		}
		if err == nil {
			out = string(r.Out())
		}
		return err
	})
	return out
}

func on(name string, readOnly bool) apitypes.SessionVolume {
	return apitypes.SessionVolume{Name: name, Target: "/v", ReadOnly: readOnly}
}

const known = "what must stay"

func (w *volumeWorld) prepare() {
	w.create(apitypes.VolumeRequest{Name: "shared", Size: 8 << 20})
	w.create(apitypes.VolumeRequest{Name: "fixed", Size: 8 << 20})
	w.run("first", "echo '"+known+"' > /v/file", on("fixed", false))
	w.endSession("first")
	_, err := w.client.CreateVolume(w.ctx, apitypes.VolumeRequest{Name: "first-copy", From: "fixed"})
	if w.copies = err == nil; w.copies {
		w.remove("first-copy")
	} else if !strings.Contains(err.Error(), "is a directory with project quota") {
		w.t.Fatal(err)
	}
	for _, id := range []string{"left", "right"} {
		w.run(id, "true")
	}
}

// contend attaches the volume "shared" read-write to a session, unless another session has it,
// writes to it, and detaches it.
func (w *volumeWorld) contend(id string) {
	attached := func() bool {
		var is apitypes.Session
		w.until("looking at "+id, nil, func() (err error) { is, err = w.client.Session(w.ctx, id); return err })
		return len(is.Volumes) > 0
	}
	w.actor(func(int) {
		before := w.phase.Load()
		_, err := w.client.Update(w.ctx, id, apitypes.SessionUpdate{AttachVolumes: []apitypes.SessionVolume{on("shared", false)}})
		switch {
		case client.IsCode(err, apitypes.CodeVolumeInUse):
			return
		case err != nil && !w.forgiven(err, before):
			w.fail("attaching to %s: %w", id, err)
			return
		case err != nil:
			w.until("waiting", nil, func() error { _, err := w.client.Sessions(w.ctx); return err })
			if !attached() {
				return
			}
		}
		w.logMu.Lock()
		n := w.logged[id] + 1
		w.logMu.Unlock()
		before = w.phase.Load()
		r, err := w.client.Exec(w.ctx, id, apitypes.ExecRequest{Shell: fmt.Sprintf(
			"mkdir /v/lock || exit 9; grep -qx '%s %d' /v/log || echo '%[1]s %[2]d' >> /v/log; rmdir /v/lock", id, n)})
		switch {
		case err != nil && !w.forgiven(err, before):
			w.fail("writing in %s: %w", id, err)
			return
		case err != nil: // killed with the daemon, maybe between mkdir and rmdir; nobody else has the volume
			w.run(id, "rmdir /v/lock 2> /dev/null; true")
		case r.Status != 0:
			w.fail("writing in %s: the lock of another writer is there: %s", id, describe(r))
			return
		default:
			w.logMu.Lock()
			w.logged[id] = n
			w.logMu.Unlock()
		}
		w.until("detaching from "+id, []string{apitypes.CodeInvalid}, func() error { // invalid: it was detached before the answer was cut off
			_, err := w.client.Update(w.ctx, id, apitypes.SessionUpdate{Detach: []string{"/v"}})
			return err
		})
	})
}

// build makes a volume, a snapshot of it that it resizes, and removes both.
func (w *volumeWorld) build(name string, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 7))
	source, copied, user := name, name+"-copy", name+"-user"
	w.actor(func(n int) {
		w.create(apitypes.VolumeRequest{Name: source, Size: 4 << 20})
		text := fmt.Sprint(name, " ", n, " ", random.Uint64())
		w.run(user, "echo "+text+" > /v/file", on(source, false))
		w.endSession(user)
		if w.copies {
			w.create(apitypes.VolumeRequest{Name: copied, From: source})
		} else {
			w.create(apitypes.VolumeRequest{Name: copied, Size: 4 << 20})
			w.run(user, "echo "+text+" > /v/file", on(copied, false))
			w.endSession(user)
		}
		w.run(user, "echo other > /v/file", on(source, false))
		size := apitypes.Size(8<<20 + random.Int64N(8<<20))
		w.until("resizing "+copied, nil, func() error {
			_, err := w.client.ResizeVolume(w.ctx, copied, apitypes.VolumeUpdate{Size: size})
			return err
		})
		w.endSession(user)
		if got := w.run(user, "cat /v/file", on(copied, true)); got != text+"\n" {
			w.fail("the copy of %s has %q, must have %q", name, got, text)
		}
		w.endSession(user)
		w.remove(source)
		w.remove(copied)
		w.churned.Add(2)
	})
}

// transfer exports a volume and imports it into another one, by the command line.
func (w *volumeWorld) transfer() {
	w.actor(func(int) {
		w.create(apitypes.VolumeRequest{Name: "imported", Size: 8 << 20})
		tar, ok := w.command(nil, "volumes", "export", "fixed")
		if ok {
			_, ok = w.command(tar, "volumes", "import", "imported")
		}
		if ok {
			if got := w.run("reader", "cat /v/file", on("imported", true)); got != known+"\n" {
				w.fail("imported %q", got)
			}
			w.endSession("reader")
			w.bytes.Add(1)
		}
		w.remove("imported")
	})
}

// command runs boxd. If the daemon was killed meanwhile, ok is false, and the session that did
// it is removed.
func (w *volumeWorld) command(stdin []byte, args ...string) (stdout []byte, ok bool) {
	before := w.phase.Load()
	cmd := exec.CommandContext(w.ctx, w.daemon.Boxd, append(args, "--socket", w.daemon.Socket())...)
	cmd.Stdin = bytes.NewReader(stdin)
	stdout, err := cmd.Output()
	if err == nil {
		return stdout, true
	}
	if w.phase.Load() == before && before%2 == 0 {
		if ended, ok := errors.AsType[*exec.ExitError](err); ok {
			err = fmt.Errorf("%w: %s", err, ended.Stderr)
		}
		w.fail("boxd %q: %w", args, err)
	}
	var list []apitypes.Session
	w.until("listing", nil, func() (err error) { list, err = w.client.Sessions(w.ctx); return err })
	for _, s := range list {
		if strings.HasPrefix(s.ID, "volume-") {
			w.endSession(s.ID)
		}
	}
	return nil, false
}

// expire lets the TTL of a session with a volume end, and revives it: its workspace is there.
func (w *volumeWorld) expire() {
	idle, retain := apitypes.Duration(time.Second), "1h"
	written := 0
	w.actor(func(n int) {
		w.until("reviving", nil, func() error {
			_, err := w.client.Ensure(w.ctx, apitypes.SessionRequest{ID: "kept", SessionSpec: apitypes.SessionSpec{
				LiveWishes: spec.LiveWishes{IdleTTL: &idle, Retain: &retain}, Volumes: []apitypes.SessionVolume{on("fixed", true)}}})
			if err != nil {
				return err
			}
			// A kill may come between any two steps, so n is replaced, not emptied and written.
			r, err := w.client.Exec(w.ctx, "kept", apitypes.ExecRequest{Shell: fmt.Sprintf("cat /v/file; cat n; echo %d > new && mv new n", n+1)})
			switch {
			case err != nil:
				return err
			case !strings.HasPrefix(string(r.Out()), known) || n > 0 && !slices.Contains([]string{fmt.Sprint(n), fmt.Sprint(n + 1)}, lastLine(r.Out())):
				w.fail("revived: %s, must have %d", describe(r), n)
			}
			written = n + 1
			return nil
		})
		if written%2 == 0 { // most of the time it is stopped
			w.quiet.RUnlock()
			pause(w.stop, 1200*time.Millisecond)
			w.quiet.RLock()
		}
		w.execs.Add(1)
	})
}

func lastLine(out []byte) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1]
}

// check compares what boxd says with what is there. Nothing is asked for meanwhile, and what is
// removed in the background is awaited.
func (w *volumeWorld) check() {
	var wrong []string
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); pause(nil, 20*time.Millisecond) {
		if wrong = w.disorder(); len(wrong) == 0 {
			break
		}
	}
	for _, text := range wrong {
		w.t.Error(text)
	}
	w.checkLog()
}

// disorder returns what does not agree.
func (w *volumeWorld) disorder() (wrong []string) {
	note := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	ctx, cancel := context.WithTimeout(w.ctx, 10*time.Second)
	defer cancel()
	list, err := w.client.Volumes(ctx)
	if err != nil {
		note("listing volumes: %v", err)
	}
	status, err := w.client.Status(ctx)
	if err != nil {
		note("status: %v", err)
	}
	var bytes int64
	for _, v := range list {
		bytes += int64(v.Size)
		if v.State != apitypes.VolumeReady {
			note("volume %s is %s", v.Name, v.State)
		}
		writers := 0
		for _, a := range v.Attached {
			if !a.ReadOnly {
				writers++
			}
		}
		if writers > 1 || writers == 1 && len(v.Attached) > 1 {
			note("volume %s: %+v", v.Name, v.Attached)
		}
	}
	for _, q := range status.Quota {
		if q.Name == "volumes" && int(q.InUse) != len(list) || q.Name == "volume_bytes" && int64(q.InUse) != bytes {
			note("quota %s: %v in use, and there are %d volumes of %d bytes", q.Name, q.InUse, len(list), bytes)
		}
	}
	files, err := os.ReadDir(filepath.Join(w.daemon.State(), "volumes"))
	if err != nil {
		note("%v", err)
	}
	images := 0
	for _, f := range files {
		switch name := f.Name(); {
		case strings.HasPrefix(name, "v-") && !strings.HasSuffix(name, ".volume"):
			images++
		case strings.HasPrefix(name, ".new"):
			note("left: %s", name)
		}
	}
	if images != len(list) {
		note("%d volumes, and %d are there: %v", len(list), images, files)
	}
	for device, boxes := range w.writers() {
		if len(boxes) > 1 {
			note("device %s is writable in the boxes of processes %v", device, boxes)
		}
	}
	return wrong
}

// writers returns the agents whose boxes have a loop device mounted read-write at /v or /volume, by device.
func (w *volumeWorld) writers() map[string][]string {
	found := map[string][]string{}
	tables, _ := filepath.Glob("/proc/[0-9]*/mountinfo")
	spaces := map[string]bool{}
	for _, table := range tables {
		text, err := os.ReadFile(table)
		if err != nil || !strings.Contains(string(text), " /dev/loop") {
			continue
		}
		space, err := os.Readlink(filepath.Join(filepath.Dir(table), "ns/mnt"))
		if err != nil || spaces[space] {
			continue
		}
		spaces[space] = true
		for line := range strings.Lines(string(text)) {
			f := strings.Fields(line) // proc_pid_mountinfo(5)
			if len(f) > 5 && strings.Contains(line, " /dev/loop") && (f[4] == "/v" || f[4] == "/volume") && slices.Contains(strings.Split(f[5], ","), "rw") {
				found[f[2]] = append(found[f[2]], filepath.Base(filepath.Dir(table)))
			}
		}
	}
	return found
}

// checkLog checks that "shared" has each line that was acknowledged, once.
func (w *volumeWorld) checkLog() {
	w.logMu.Lock()
	defer w.logMu.Unlock()
	if w.logged["left"]+w.logged["right"] == 0 {
		return
	}
	// Sessions let go of the volume before they are quiet.
	lines := strings.Fields(strings.ReplaceAll(w.run("auditor", "cat /v/log", on("shared", true)), " ", ":"))
	w.endSession("auditor")
	times := map[string]int{}
	for _, line := range lines {
		times[line]++
	}
	for id, last := range w.logged {
		for n := 1; n <= last; n++ {
			if line := fmt.Sprintf("%s:%d", id, n); times[line] != 1 {
				w.t.Errorf("line %q is there %d times", line, times[line])
			}
		}
	}
}

// endVolumes ends everything, and checks that nothing is left.
func (w *volumeWorld) endVolumes() {
	close(w.stop)
	w.actors.Wait()
	for _, id := range []string{"left", "right", "kept"} {
		w.endSession(id)
	}
	for _, name := range []string{"shared", "fixed"} {
		w.remove(name)
	}
	w.checkEmpty()
	if err := w.daemon.Stop(); err != nil {
		w.t.Error(err)
	}
	devices, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, device := range devices {
		if file, err := os.ReadFile(device); err == nil && strings.HasPrefix(string(file), w.daemon.Dir) {
			w.t.Errorf("left: %s of %s", device, file)
		}
	}
	for _, pattern := range []string{"run/run-*/boxes/*", "run/ids/*", "workspaces/*/*", "volumes/[vw]-*", "volumes/.old/*", "volumes/.new*"} {
		left, _ := filepath.Glob(filepath.Join(w.daemon.State(), pattern))
		for _, name := range left {
			w.t.Errorf("left: %s", name)
		}
	}
}

// checkEmpty waits until nothing is left.
func (w *volumeWorld) checkEmpty() {
	var wrong []string
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); pause(nil, 20*time.Millisecond) {
		if wrong = w.disorder(); len(wrong) == 0 {
			break
		}
	}
	list, err := w.client.Volumes(w.ctx)
	sessions, serr := w.client.Sessions(w.ctx)
	if len(wrong) != 0 || len(list) != 0 || len(sessions) != 0 || err != nil || serr != nil {
		w.t.Errorf("left: %q, volumes %+v, sessions %+v, %v, %v", wrong, list, sessions, err, serr)
	}
}
