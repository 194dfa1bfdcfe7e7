package cgroups

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// sockets is the role of a command that sends over its own TCP connections until they are
// full, but at most n bytes. It prints how many bytes it has sent, and waits.
func sockets(n string) int {
	most, _ := strconv.Atoi(n)
	sent, fail := fillSockets(most)
	if fail != nil {
		fmt.Fprintln(os.Stderr, fail)
		return 1
	}
	fmt.Println(sent)
	unix.Pause()
	return 0
}

func fillSockets(most int) (sent int, err error) {
	chunk := bytes.Repeat([]byte("x"), 1<<20)
	for sent < most {
		client, server, err := connection()
		if err != nil {
			return sent, err
		}
		before := sent
		// A full connection takes more when the other end has acknowledged, but that is
		// irrelevant here: stop after two refusals.
		for refused := 0; refused < 2 && sent < most; {
			n, err := unix.Write(client, chunk)
			if err == unix.EAGAIN {
				refused++
				time.Sleep(time.Millisecond)
				continue
			}
			if err != nil {
				return sent, err
			}
			sent += n
		}
		if sent-before < 64<<10 {
			_ = server // kept open: the data stays
			return sent, nil
		}
	}
	return sent, nil
}

// connection returns both ends of a TCP connection over loopback. They do not block.
func connection() (client, server int, err error) {
	listener, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return 0, 0, err
	}
	defer unix.Close(listener)
	if err := unix.Bind(listener, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return 0, 0, err
	}
	if err := unix.Listen(listener, 1); err != nil {
		return 0, 0, err
	}
	address, err := unix.Getsockname(listener)
	if err != nil {
		return 0, 0, err
	}
	if client, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0); err != nil {
		return 0, 0, err
	}
	if err := unix.Connect(client, address); err != nil {
		return 0, 0, err
	}
	if server, _, err = unix.Accept(listener); err != nil {
		return 0, 0, err
	}
	return client, server, unix.SetNonblock(client, true)
}

// TestSocketMemory: on cgroup2, the memory of a box's sockets counts against its memory limit.
// On v1, it is bounded by a quarter of the memory limit, for the sockets of all slots together,
// even after a change of the limit.
func TestSocketMemory(t *testing.T) {
	b := newBox(t, Limits{Memory: 64 * mib})
	tree := b.v1Tree("memory")
	if tree == nil {
		s, _ := b.slot(t)
		b.start(t, s, "sockets", fmt.Sprint(8*mib)).line(t)
		if u, err := b.Usage(); err != nil || *u.Memory < 6*mib {
			t.Errorf("8 MiB in sockets, %d bytes are charged, %v", orMinus(u.Memory), err)
		}
		check(t, b.Kill())
		return
	}
	bound := func() int64 {
		n, err := (&knob{dir: tree.box, file: "work/" + socketLimit}).read()
		check(t, err)
		return n
	}
	used := func() int64 {
		n, err := readNumber(tree.box, "work/"+socketUsage)
		check(t, err)
		return n
	}
	if got := bound(); got != 16*mib {
		t.Errorf("bound %d", got)
	}
	for range 2 {
		s, _ := b.slot(t)
		c := b.start(t, s, "sockets", fmt.Sprint(128*mib))
		taken, err := strconv.ParseInt(c.line(t), 10, 64)
		check(t, err)
		t.Logf("%d KiB were taken, %d KiB are counted", taken>>10, used()>>10)
		// A sender may exceed the bound by the data in transit on its connections.
		if got := used(); got < 8*mib || got > 24*mib || taken > 32*mib {
			t.Errorf("sockets hold %d bytes with a bound of %d; %d were taken", got, bound(), taken)
		}
	}
	// Lower the limit of a live box: its sockets hold more than a quarter of the new one.
	err := b.Set(Limits{Memory: 48 * mib})
	inUse, ok := errors.AsType[*InUseError](err)
	if !ok || inUse.Sockets < 8*mib || !strings.Contains(err.Error(), "sockets") || strings.Contains(err.Error(), "\n") {
		t.Errorf("lowering: %v", err)
	}
	if memory, _, _ := b.inForce(t); memory != 64*mib || bound() != 16*mib {
		t.Errorf("after a change that failed: memory %d, sockets %d", memory, bound())
	}
	for _, c := range []struct{ memory, sockets int64 }{{128 * mib, 32 * mib}, {Unlimited, Unlimited}, {256*mib + 4096, 64 * mib}} {
		check(t, b.Set(Limits{Memory: c.memory}))
		if got := bound(); got != c.sockets {
			t.Errorf("memory %d: sockets have %d, want %d", c.memory, got, c.sockets)
		}
	}
	check(t, b.Kill())
}

// TestKernelMemory: the proof succeeds on the hosts of these tests, leaves nothing behind, and
// fails if the account is off.
func TestKernelMemory(t *testing.T) {
	h := testHost(t)
	id := testID()
	check(t, h.CheckKernelMemory(id))
	on := h.of("memory")
	if !on.v1 {
		return
	}
	if h.kernel.hold == nil {
		t.Error("nothing keeps the kernel's account")
	}
	mustBeGone(t, h, id)
	// A leftover of a process that was killed during the proof does no harm.
	g := &Group{ID: id, host: h}
	check(t, g.makeV1(on))
	check(t, g.v1[0].box.Close())
	check(t, h.proveSockets(on, id))
	mustBeGone(t, h, id)
	// A host that trusts an earlier proof makes none, but still looks whether there is an account.
	trusting := testHost(t)
	trusting.TrustKernelMemory()
	check(t, trusting.CheckKernelMemory(id))
	if trusting.kernel.hold != nil {
		t.Error("a trusting host makes the proof")
	}
	// Use a hierarchy without such an account: that of another controller.
	other := h.of("pids")
	if !other.v1 || other.has("memory") {
		return
	}
	if err := h.proveSockets(other, id); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("on %s: %v", other.dir.Name(), err)
	}
}

// TestKernelMemoryUnenforceable: on a host that does not count sockets, a box with a memory limit
// is refused unless the caller accepts that; a box without a limit is not.
func TestKernelMemoryUnenforceable(t *testing.T) {
	h := testHost(t)
	h.kernel.known = true
	h.kernel.err = &UnenforceableError{Limit: "kernel memory", Reason: "not counted", Mend: "another kernel"}
	id := testID()
	_, err := h.Create(id, Owner{}, Limits{Memory: 64 * mib})
	if u, ok := errors.AsType[*UnenforceableError](err); !ok || u.Limit != "kernel memory" {
		t.Errorf("%v", err)
	}
	mustBeGone(t, h, id)
	check(t, newBoxOn(t, h, Limits{PIDs: 10}).Set(Limits{PIDs: 20}))
	b := newBoxOn(t, h, Limits{Memory: 64 * mib, AllowDegraded: true})
	if len(b.Degraded) != 1 || b.Degraded[0].Limit != "kernel memory" {
		t.Errorf("degraded: %v", b.Degraded)
	}
	if memory, _, _ := b.inForce(t); memory != 64*mib {
		t.Errorf("memory %d", memory)
	}
	check(t, b.Set(Limits{Memory: Unlimited}))
	if len(b.Degraded) != 0 {
		t.Errorf("degraded without a memory limit: %v", b.Degraded)
	}
	for _, e := range h.Enforcement() {
		if e.Enforced != (e.Limit != "kernel memory") {
			t.Errorf("%+v", e)
		}
	}
}

func BenchmarkKernelMemoryProof(b *testing.B) {
	h := testHost(b)
	on := h.of("memory")
	if !on.v1 {
		return
	}
	for b.Loop() {
		check(b, h.proveSockets(on, testID()))
	}
}
