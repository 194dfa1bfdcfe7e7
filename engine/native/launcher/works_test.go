package launcher

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native/rpc"
)

// newCreate is a create of a client that has a slot.
func newCreate(t *testing.T, a *works, conn *wire.Conn, box string, slots chan struct{}) *work {
	t.Helper()
	w := a.request(conn, &wire.Frame{Type: rpc.TypeCreate, ID: 7})
	w.makes(box, false)
	w.by(nativeKind)
	if err := w.enter(slots); err != nil {
		t.Fatal(err)
	}
	return w
}

// A create that stays at one step for long gives its slot back, is reported without naming
// anything of a tenant's, and is given up in the end. None of this happens to a create that
// makes progress.
func TestHangingWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, slots := newWorks(), make(chan struct{}, 1)
		w := newCreate(t, a, nil, "b1", slots)
		killed := 0
		w.onRefusal(func() { killed++ })
		for range 3 { // slow, but not at one step
			done := w.begin("making its root", "", nil)
			time.Sleep(stallTime - time.Millisecond)
			done()
		}
		if text := a.report(nativeKind); text != "" || len(slots) != 1 || !a.buildsBox() {
			t.Errorf("a slow create: %q, %d slots taken, builds a box: %v", text, len(slots), a.buildsBox())
		}
		w.begin("attaching a mount", `at "/secret"`, nil)
		time.Sleep(stallTime)
		synctest.Wait()
		text := a.report(nativeKind)
		if !strings.Contains(text, "attaching a mount has taken 5.0 s") || strings.Contains(text, "secret") || strings.Contains(text, "b1") || len(slots) != 0 || a.buildsBox() {
			t.Errorf("a create that hangs: %q, %d slots taken, builds a box: %v", text, len(slots), a.buildsBox())
		}
		if at := a.at(nil, 7); !strings.Contains(at, `attaching a mount at "/secret" has taken`) {
			t.Errorf("its client is told %q", at)
		}
		other := newCreate(t, a, nil, "b2", slots) // does not wait
		other.leave()
		other.end()
		time.Sleep(giveUpTime - stallTime)
		<-w.refused
		synctest.Wait()
		if !errors.Is(w.why, engine.ErrNoLauncher) || !strings.Contains(w.why.Error(), `attaching a mount at "/secret" has taken 30.0 s`) || killed != 1 {
			t.Errorf("given up with %v, killed %d times", w.why, killed)
		}
		if w.complete() || a.report(nativeKind) == "" || a.idle() || a.buildsBox() {
			t.Error("one that was given up hangs no more, or got its box")
		}
		w.onRefusal(func() { killed++ })
		if w.leave(); killed != 2 || len(slots) != 0 {
			t.Errorf("killed %d times, %d slots taken", killed, len(slots))
		}
		w.finish(w.steps[0])
		w.end()
		if text := a.report(nativeKind); text != "" || !a.idle() || a.hanging[nativeKind] != 0 {
			t.Errorf("after its end: %q", text)
		}
	})
}

// When a client is gone, its creates are given up as soon as they hang, and not before.
func TestForsakenWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, slots := newWorks(), make(chan struct{}, 9)
		mine, yours := &wire.Conn{}, &wire.Conn{}
		hangs, works := newCreate(t, a, mine, "b1", slots), newCreate(t, a, mine, "b2", slots)
		late, others := newCreate(t, a, mine, "b3", slots), newCreate(t, a, yours, "b4", slots)
		hangs.begin("x", "", nil)
		others.begin("x", "", nil)
		time.Sleep(stallTime)
		synctest.Wait()
		done := works.begin("x", "", nil)
		late.begin("x", "", nil)
		a.forsake(mine)
		<-hangs.refused
		if done(); !works.complete() {
			t.Error("one that did not hang was given up")
		}
		began := time.Now()
		<-late.refused
		if took := time.Since(began); took != stallTime {
			t.Errorf("given up after %v", took)
		}
		if !others.complete() {
			t.Error("that of another client was given up")
		}
		a.forsake(nil)
	})
}

// When maxHanging creates hang, no further one is tried.
func TestTooManyHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, slots := newWorks(), make(chan struct{}, 1)
		for range maxHanging {
			newCreate(t, a, nil, "b", slots).begin("x", "", nil)
			time.Sleep(stallTime)
			synctest.Wait()
		}
		w := a.request(nil, &wire.Frame{Type: rpc.TypeCreate})
		w.makes("b", false)
		w.by(nativeKind)
		if err := w.enter(slots); !errors.Is(err, engine.ErrNoLauncher) || !strings.Contains(err.Error(), "the making of 16 boxes hangs") || len(slots) != 0 {
			t.Errorf("one more: %v", err)
		}
	})
}

// Creates with another runtime that hang are no sign that native boxes cannot be built, and leave them
// their turns. They are refused as those of an engine that is not available, so that the next one is tried.
func TestForeignHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &Launcher{works: newWorks(), runtimes: map[kind]boxRuntime{nativeKind: native{}}}
		l.works.noteBuilt()
		foreign := kind{"containerd", "namespaces"}
		enter := func(k kind, slots chan struct{}) (*work, error) {
			w := l.works.request(nil, &wire.Frame{Type: rpc.TypeCreate})
			w.makes("b", false)
			w.by(k)
			return w, w.enter(slots)
		}
		slots, own := make(chan struct{}, maxHanging), make(chan struct{}, 1)
		var first *work
		for range maxHanging {
			w, err := enter(foreign, slots)
			if err != nil {
				t.Fatal(err)
			}
			if w.begin("starting its init stage", "", nil); first == nil {
				first = w
			}
		}
		time.Sleep(stallTime)
		synctest.Wait()
		l.works.noteBuilt()
		if err := l.canBuild(); err != nil {
			t.Errorf("health: %v", err)
		}
		if w, err := enter(nativeKind, own); err != nil {
			t.Errorf("a native box: %v", err)
		} else {
			w.leave()
			w.end()
		}
		if _, err := enter(foreign, slots); !errors.Is(err, engine.ErrNoEngine) || errors.Is(err, engine.ErrNoLauncher) || !strings.Contains(err.Error(), "the making of 16 boxes hangs") {
			t.Errorf("one more with the same runtime: %v", err)
		}
		time.Sleep(giveUpTime - stallTime)
		if <-first.refused; !errors.Is(first.why, engine.ErrNoEngine) || errors.Is(first.why, engine.ErrNoLauncher) {
			t.Errorf("given up with %v", first.why)
		}
		synctest.Wait()
	})
}

// A create that waits for its turn is refused at once when its client gives up; a complete
// one is not.
func TestRefusedWork(t *testing.T) {
	a, slots := newWorks(), make(chan struct{}, 1)
	first := newCreate(t, a, nil, "b1", slots)
	w := a.request(nil, &wire.Frame{Type: rpc.TypeCreate})
	w.makes("b2", false)
	ended := make(chan error)
	go func() { ended <- w.enter(slots) }()
	a.creating("b2").refuse("its client has given up")
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "given up") {
		t.Errorf("%v", err)
	}
	if a.creating("b2") != nil || a.creating("b1") != first || !first.complete() || a.creating("b1") != nil {
		t.Error("what can be given up is not what is being made")
	}
	first.refuse("late")
	select {
	case <-first.refused:
		t.Error("one that was complete was refused")
	default:
	}
}

// A text names the process that hangs, and where it hangs.
func TestWhere(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(cmd.Process.Pid, &status, syscall.WUNTRACED, nil); err != nil {
		t.Fatal(err)
	}
	s := &step{name: "x", since: time.Now(), pids: func() []int { return []int{os.Getpid(), cmd.Process.Pid, 1 << 30} }}
	if text := s.text(true); !strings.Contains(text, "(sleep), state T") {
		t.Error(text)
	}
	if s.pids = only(0); !strings.Contains(s.text(true), "no process yet") {
		t.Error(s.text(true))
	}
}
