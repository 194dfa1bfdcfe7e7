package hostile

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native"
	"github.com/boxd/boxd/internal/testutil"
	"golang.org/x/sys/unix"
)

// planEnv tells the test binary that it is the hostile client, and what to attack.
const planEnv = "BOXD_HOSTILE_PLAN"

func TestMain(m *testing.M) {
	if text := os.Getenv(planEnv); text != "" {
		playClient(text)
		return
	}
	testutil.Main(m)
}

// patience bounds what should take seconds.
var patience = func() time.Duration {
	if os.Getenv("BOXD_TEST_VM") != "" {
		return 20 * time.Minute
	}
	return 3 * time.Minute
}()

// secretMark begins every secret. The client looks for it and does not know what follows.
const secretMark = "boxd-hostile-secret-"

// plan is what the client knows.
type plan struct {
	Phase               string
	Socket, OtherSocket string
	Base                string // all directories below are in it
	State, Data         string // the launcher's
	OtherState          string
	OtherBox            string // belongs to the other launcher
	OtherVolume         string
	UID                 int
	Fuzz                int // how many frames
	Tries               int // how many requests for each race
	Seed                uint64
	Requests            []byte // the types of all requests
}

func (p *plan) at(name string) string { return filepath.Join(p.Base, name) }

// report is what the client says in the end.
type report struct {
	Loot  []string // what it has read of secrets, and how
	Wrong []string // answers that break a promise
	Sent  []int    // types of requests that were asked on purpose, not by fuzz
	Asked int
	Good  int // requests that were granted
	Boxes int
	Races int // requests that were granted in races
	Took  []string
}

// daemonUser is the user that the launcher serves.
func daemonUser(t *testing.T) int {
	t.Helper()
	u, err := user.Lookup("boxd")
	if err != nil {
		return 64711 // as on a host without packages: an id of its own
	}
	uid, err := strconv.Atoi(u.Uid)
	if err != nil {
		t.Fatal(err)
	}
	return uid
}

const otherUser = 64712

// world is the host under attack.
type world struct {
	t      *testing.T
	plan   plan
	secret string
	init   string
	roots  []string
	etc    string // what launchers find in /etc, on top of the host's
}

// launcher is a service as systemd would run it.
type launcher struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	log  string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	testutil.RequireRoot(t)
	_, init := testutil.BuildBinaries(t)
	base, err := os.MkdirTemp("", "boxd-hostile-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(base) })
	w := &world{t: t, init: init, secret: secretMark + strconv.FormatInt(time.Now().UnixNano(), 36)}
	w.plan = plan{
		Base: base, UID: daemonUser(t), Seed: seed(t), Fuzz: 6000, Tries: 160,
		State: newState(t), OtherState: newState(t), Data: filepath.Join(base, "volumes"),
		Requests: slices.Sorted(maps.Values(requests(t))),
		OtherBox: "other-box", OtherVolume: "other-volume",
	}
	if testing.Short() {
		w.plan.Fuzz, w.plan.Tries = 1500, 60
	}
	w.plan.Socket = filepath.Join(w.plan.State, native.SocketName)
	w.plan.OtherSocket = filepath.Join(w.plan.OtherState, native.SocketName)
	w.lay()
	w.roots = []string{
		w.plan.at("shared"), w.plan.at("clean") + ":no-root-owned", w.plan.at("ro") + ":ro", w.plan.at("home/root"), w.plan.at("home/second"),
	}
	return w
}

// seed is BOXD_TEST_SEED, or a new one. With the seed of an earlier run the client makes
// the same random choices.
func seed(t *testing.T) uint64 {
	t.Helper()
	n := uint64(time.Now().UnixNano())
	if text := os.Getenv("BOXD_TEST_SEED"); text != "" {
		var err error
		if n, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("BOXD_TEST_SEED: %v", err)
		}
	}
	t.Logf("again with BOXD_TEST_SEED=%d", n)
	return n
}

// newState creates a state directory for a launcher.
func newState(t *testing.T) string {
	t.Helper()
	dir := testutil.ReachableDir(t, "/run")
	t.Cleanup(func() {
		if left, _ := filepath.Glob(filepath.Join(dir, "run-*")); len(left) > 0 {
			t.Errorf("left in the state directory: %q", left)
		}
	})
	return dir
}

// lay makes what the client can attack:
//
//	bait/, private/   root's, in no mount root
//	shared/           a mount root; what is root's in it was named by root: writable
//	clean/            a mount root, no-root-owned: theirs/ is the client's, bait/ root's
//	ro/               a mount root, read-only
//	home/             the client's: home/root and home/second are mount roots, whose names the
//	                  client can give to what root has put there
//	workspaces/       the client's, as the daemon's own
func (w *world) lay() {
	p, secret := &w.plan, w.secret+"\n"
	uid := p.UID
	dir := func(name string, mode os.FileMode, owner int) {
		w.must(os.MkdirAll(p.at(name), 0o700), os.Chown(p.at(name), owner, owner), os.Chmod(p.at(name), mode))
	}
	file := func(name, text string, mode os.FileMode, owner int) {
		w.must(os.WriteFile(p.at(name), []byte(text), 0o600), os.Chown(p.at(name), owner, owner), os.Chmod(p.at(name), mode))
	}
	w.must(os.Chmod(p.Base, 0o711))
	for _, bait := range []string{"bait", "clean/bait", "clean/theirs/bait", "workspaces/bait"} {
		if parent := filepath.Dir(bait); parent == "clean/theirs" || parent == "workspaces" {
			dir("clean", 0o755, 0)
			dir(parent, 0o755, uid)
		}
		dir(bait, 0o755, 0)
		dir(bait+"/closed", 0o700, 0)
		file(bait+"/secret", secret, 0o600, 0)
		file(bait+"/public", "everybody may read this\n", 0o644, 0)
		file(bait+"/program", "#!/bin/sh\n", 0o755, 0)
		file(bait+"/closed/secret", secret, 0o644, 0)
	}
	dir("private", 0o700, 0)
	file("private/secret", secret, 0o644, 0)
	dir("private/theirs", 0o755, uid) // out of reach although it is the client's
	file("private/theirs/secret", secret, 0o644, uid)
	dir("shared", 0o755, 0)
	dir("shared/roots", 0o755, 0)
	dir("clean", 0o755, 0)
	file("clean/theirs/planted-by-root", secret, 0o600, 0)
	file("clean/theirs/group", secret, 0o640, 0)
	w.must(os.Chown(p.at("clean/theirs/group"), 4242, 0))
	dir("ro", 0o755, 4242)
	dir("ro/dir", 0o755, 4242)
	file("ro/dir/file", "read only\n", 0o644, 4242)
	dir("home", 0o755, uid)
	dir("home/root", 0o755, uid)
	dir("home/second", 0o755, uid)
	dir("home/roots", 0o755, 0)
	file("home/roots/secret", secret, 0o600, 0)
	dir("workspaces/tenant", 0o700, uid)
	dir("workspaces/tenant/session", 0o700, uid)
	file("workspaces/tenant/linked", secret, 0o600, 0) // as if linked there by somebody
	dir("workspaces/tenant/alices", 0o700, 4242)
	file("workspaces/tenant/alices/secret", secret, 0o644, 4242)
	dir("other", 0o700, otherUser)
	file("other/secret", secret, 0o644, otherUser)
}

// start runs a launcher service with the programs as they are shipped.
func (w *world) start(state string, uid int, args ...string) *launcher {
	w.t.Helper()
	l := &launcher{done: make(chan struct{}), log: filepath.Join(w.plan.Base, filepath.Base(state)+".log")}
	log, err := os.OpenFile(l.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		w.t.Fatal(err)
	}
	defer log.Close()
	args = append([]string{w.init, "launcher", "--service", "--state-dir", state, "--client", fmt.Sprintf("%d:%d", uid, uid)}, args...)
	if w.etc != "" {
		const script = `mount -t overlay -o lowerdir="$1":/etc overlay /etc && shift && exec "$@"`
		args = append([]string{"unshare", "--mount", "sh", "-c", script, "sh", w.etc}, args...)
	}
	l.cmd = exec.Command(args[0], args[1:]...)
	l.cmd.Stderr = log
	l.cmd.Dir = "/"
	if err := l.cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	go func() {
		defer close(l.done)
		_ = l.cmd.Wait() // its state says it
	}()
	w.t.Cleanup(func() { w.stop(l, state) })
	return l
}

// stop ends a launcher with its boxes.
func (w *world) stop(l *launcher, state string) {
	select {
	case <-l.done:
		return
	default:
	}
	s, err := w.connect(state)
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		err = s.Stop(ctx, true)
	}
	if err != nil {
		w.t.Errorf("stopping the launcher: %v", err)
		_ = l.cmd.Process.Kill()
	}
	<-l.done
	if w.t.Failed() {
		log, _ := os.ReadFile(l.log)
		text := strings.ReplaceAll(string(log), "boxd-init: launcher: receiving descriptors: there should be none: protocol violation\n", "")
		w.t.Logf("the launcher on %q said:\n%.4000s", state, text)
	}
}

// connect is root's connection.
func (w *world) connect(state string) (*native.Service, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return native.Connect(ctx, native.ServiceOptions{Socket: filepath.Join(state, native.SocketName)})
}

// startOther runs another instance, with a box and a volume that hold the secret.
func (w *world) startOther() (check func()) {
	w.t.Helper()
	p := &w.plan
	l := w.start(p.OtherState, otherUser, "--mount-root", p.at("other"), "--data-dir", p.at("volumes-of-other"))
	s, err := w.connect(p.OtherState)
	w.must(err)
	w.t.Cleanup(func() { s.Close() })
	ctx := w.t.Context()
	w.must(s.MakeVolume(ctx, engine.Volume{Name: p.OtherVolume, Bytes: 2 << 20}))
	b, err := s.Create(ctx, engine.Spec{ID: p.OtherBox, Mounts: []engine.Mount{
		{Source: p.at("other"), Target: "/data"}, {Source: "/", Target: "/volume", Volume: p.OtherVolume},
	}})
	w.must(err)
	run := func(script string) {
		w.t.Helper()
		r, err := engine.Run(ctx, b, engine.Command{Args: []string{"sh", "-c", script}})
		if err != nil || r.ExitCode != 0 {
			w.t.Errorf("in the other instance's box: %s: %+v, %v", script, r, err)
		}
	}
	run("cp /data/secret /volume/secret && cp /data/secret /tmp/secret")
	return func() {
		w.t.Helper()
		run("cmp /data/secret /volume/secret && cmp /data/secret /tmp/secret")
		if err := b.Remove(ctx); err != nil {
			w.t.Error(err)
		}
		s.Close()
		w.stop(l, p.OtherState)
	}
}

// attack runs the client and returns its report.
func (w *world) attack(phase string) (r report) {
	w.t.Helper()
	w.plan.Phase = phase
	text, err := json.Marshal(w.plan)
	w.must(err)
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	uid := uint32(w.plan.UID)
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Env = []string{planEnv + "=" + string(text), "PATH=/usr/bin:/bin", "BOXD_TEST_VM=" + os.Getenv("BOXD_TEST_VM")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	cmd.Dir = "/"
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	// The client waits for the end of its input: before that, root names it for the launcher.
	input, err := cmd.StdinPipe()
	w.must(err, cmd.Start(), native.AdmitClient(w.plan.State, cmd.Process.Pid))
	input.Close()
	err = cmd.Wait()
	if jerr := json.Unmarshal([]byte(stdout.String()), &r); err != nil || jerr != nil {
		w.t.Fatalf("the client ended: %v, %v\n%.3000s\n%.2000s", err, jerr, stderr.String(), stdout.String())
	}
	w.t.Logf("%s: %d requests, %d of them granted, %d boxes, %d granted in races; %s", phase, r.Asked, r.Good, r.Boxes, r.Races, r.Took)
	for _, what := range r.Wrong {
		w.t.Errorf("wrong: %s", what)
	}
	for _, what := range r.Loot {
		if strings.Contains(what, w.secret) {
			w.t.Errorf("the client has read what only root may read: %.300s", what)
		} else {
			w.t.Errorf("the client believes it has a secret: %.300s", what)
		}
	}
	return r
}

func (w *world) must(errs ...error) {
	w.t.Helper()
	if err := errors.Join(errs...); err != nil {
		w.t.Fatal(err)
	}
}

// bait are the trees that must not change, with all that can be seen of them, and of their
// contents a hash: what a failure prints is read by more than root.
func (w *world) bait() map[string]string {
	w.t.Helper()
	seen := map[string]string{}
	add := func(path string) error {
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		hash := ""
		if st.Mode&unix.S_IFMT == unix.S_IFREG && st.Size < 1<<20 {
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			hash = fmt.Sprintf("%x", sha256.Sum256(content))
		}
		names := make([]byte, 4096)
		n, err := unix.Llistxattr(path, names)
		if err != nil {
			n = copy(names, err.Error())
		}
		seen[path] = fmt.Sprintf("%d %o %d:%d %d %d %v %v %q %s", st.Ino, st.Mode, st.Uid, st.Gid, st.Nlink, st.Size, st.Mtim, st.Ctim, names[:n], hash)
		return nil
	}
	for _, tree := range []string{"bait", "private", "clean/bait", "clean/theirs/bait", "clean/theirs/planted-by-root", "workspaces/bait", "workspaces/tenant/linked", "workspaces/tenant/alices", "ro", "other"} {
		w.must(filepath.WalkDir(w.plan.at(tree), func(path string, _ os.DirEntry, err error) error {
			return errors.Join(err, add(path))
		}))
	}
	// The directory itself: nothing was made in it.
	w.must(add(w.plan.at("clean")))
	return seen
}

// wantHostUntouched looks for the client's traces in what the host itself may change meanwhile:
// what spoilFile, spoilTree and spoil write.
func (w *world) wantHostUntouched() {
	w.t.Helper()
	for _, dir := range []string{"/", "/etc", "/root"} {
		planted, err := filepath.Glob(filepath.Join(dir, "planted*"))
		if err != nil || len(planted) > 0 {
			w.t.Errorf("the client has made %q, %v", planted, err)
		}
	}
	for _, file := range []string{"/etc/passwd", "/etc/shadow"} {
		text, err := os.ReadFile(file)
		if err != nil || strings.Contains("\n"+string(text), "\nplanted") { // the contents are not for the log
			w.t.Errorf("%s was written to by the client, or cannot be read: %v", file, err)
		}
		if info, err := os.Stat(file); err != nil {
			w.t.Error(err)
		} else if info.Mode()&(os.ModeSetuid|0o022) != 0 {
			w.t.Errorf("%s: mode %v", file, info.Mode())
		}
	}
}

func (w *world) wantUntouched(before map[string]string) {
	w.t.Helper()
	after := w.bait()
	paths := map[string]bool{}
	for path := range before {
		paths[path] = true
	}
	for path := range after {
		paths[path] = true
	}
	w.wantHostUntouched()
	for path := range paths {
		if before[path] != after[path] {
			w.t.Errorf("%s was\n%s\nand is\n%s", path, before[path], after[path])
		}
	}
}

// TestHostileClient lets it try everything.
func TestHostileClient(t *testing.T) {
	w := newWorld(t)
	p := &w.plan
	checkOther := w.startOther()
	var args []string
	for _, root := range w.roots {
		args = append(args, "--mount-root", root)
	}
	args = append(args, "--workspaces", p.at("workspaces"), "--data-dir", p.Data)
	// A mount below a directory of the client: mounts are not recursive.
	w.must(os.Mkdir(p.at("clean/theirs/mnt"), 0o755), unix.Mount("bait", p.at("clean/theirs/mnt"), "tmpfs", 0, "mode=0755"),
		os.WriteFile(p.at("clean/theirs/mnt/secret"), []byte(w.secret), 0o600))
	t.Cleanup(func() {
		if err := unix.Unmount(p.at("clean/theirs/mnt"), unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	before := w.bait()
	l := w.start(p.State, p.UID, args...)
	r := w.attack("all")
	w.wantUntouched(before)
	if r.Good < 20 || r.Boxes < 3 || r.Races == 0 {
		t.Errorf("%+v: the client was hardly granted anything, so nothing was tried", r)
	}
	select {
	case <-l.done:
		log, _ := os.ReadFile(l.log)
		t.Fatalf("the launcher has ended:\n%.3000s", log)
	default:
	}
	// Everything in a root that root has named may be written, including files of root.
	if text, err := os.ReadFile(p.at("shared/roots/written")); err != nil || string(text) != "by the client\n" {
		t.Errorf("a directory of root's in a mount root that root has named: %q, %v", text, err)
	}
	// A client can have its launcher started again. That gives it nothing.
	stopped := w.attack("stop")
	<-l.done
	for name, typ := range requests(t) {
		if !slices.Contains(append(r.Sent, stopped.Sent...), int(typ)) {
			t.Errorf("the client has not tried request %s", name)
		}
	}
	if code := l.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("asked to stop, the launcher ended with %d", code)
	}
	w.start(p.State, p.UID, args...)
	w.attack("again")
	w.wantUntouched(before)
	checkOther()
	log, err := os.ReadFile(l.log)
	if err != nil || slices.ContainsFunc([]string{"panic", "goroutine ", "fatal error"}, func(s string) bool { return strings.Contains(string(log), s) }) {
		t.Errorf("the launcher said (%v):\n%.4000s", err, log)
	}
}
