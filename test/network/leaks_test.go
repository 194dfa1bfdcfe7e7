package network

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/egress"
	"github.com/boxd/boxd/egress/rules"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/testutil"
	"github.com/boxd/boxd/test/boxes"
	"github.com/boxd/boxd/test/daemon"
)

// holdings are what this process and its descendants hold of a network.
type holdings struct {
	files      map[int]int // by process
	goroutines int
	namespaces int
	sockets    int // of the network namespace of the tests, also those without a descriptor; not TIME_WAIT
}

// holdingsNow counts them.
func holdingsNow(t *testing.T) holdings {
	t.Helper()
	h := holdings{files: map[int]int{}, goroutines: runtime.NumGoroutine()}
	parents := map[int]int{}
	spaces := map[string]bool{}
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, proc := range all {
		var pid, parent int
		fmt.Sscan(filepath.Base(proc), &pid)
		stat, err := os.ReadFile(filepath.Join(proc, "stat"))
		if err != nil {
			continue
		}
		_, after, _ := strings.Cut(string(stat), ") ")
		fmt.Sscan(after[2:], &parent)
		parents[pid] = parent
	}
	for pid := range parents {
		for up := pid; up > 1; up = parents[up] {
			if up != os.Getpid() {
				continue
			}
			proc := fmt.Sprintf("/proc/%d", pid)
			if names, err := os.ReadDir(filepath.Join(proc, "fd")); err == nil {
				h.files[pid] = len(names)
				for _, name := range names {
					if to, err := os.Readlink(filepath.Join(proc, "fd", name.Name())); err == nil && strings.HasPrefix(to, "net:[") {
						spaces[to] = true
					}
				}
			}
			if to, err := os.Readlink(filepath.Join(proc, "ns/net")); err == nil {
				spaces[to] = true
			}
			break
		}
	}
	h.namespaces = len(spaces)
	protocols, err := os.ReadFile("/proc/thread-self/net/protocols")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(protocols)) {
		var name string
		var size, n int
		fmt.Sscan(line, &name, &size, &n) // not the heading
		h.sockets += n
	}
	return h
}

// slack is less than what any test would leave with each of its boxes.
const slack = 8

// more says what h has beyond before; "" if nothing.
func (h holdings) more(before holdings) string {
	var list []string
	for pid, n := range h.files {
		// A launcher makes a few namespaces ahead.
		if had, ok := before.files[pid]; ok && n > had+slack || !ok {
			list = append(list, fmt.Sprintf("process %d has %d descriptors, had %d", pid, n, had))
		}
	}
	if h.goroutines > before.goroutines {
		list = append(list, fmt.Sprintf("%d goroutines, %d before", h.goroutines, before.goroutines))
	}
	if h.namespaces > before.namespaces+slack {
		list = append(list, fmt.Sprintf("%d namespaces, %d before", h.namespaces, before.namespaces))
	}
	if h.sockets > before.sockets+slack {
		list = append(list, fmt.Sprintf("%d sockets, %d before", h.sockets, before.sockets))
	}
	slices.Sort(list)
	return strings.Join(list, "; ")
}

// TestManyBoxes: boxes whose network is in use come and go, and nothing stays.
func TestManyBoxes(t *testing.T) {
	testutil.RequireRoot(t)
	count := 100
	if testing.Short() {
		count = 30
	}
	if testutil.Full() {
		count = 1000
	}
	hold(t)
	e := boxes.Start(t)
	one := func() {
		ctx := context.Background()
		b, remove := boxes.Create(t, e, engine.Spec{})
		defer remove()
		p, err := egress.New(egress.Config{Rules: rules.Rules{Allow: []string{"good.example:7000"}}})
		if err != nil {
			t.Fatal(err)
		}
		listeners, err := b.(engine.Networked).Listen(ctx, egress.Addresses()...)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range listeners {
			go p.Serve(l.(*net.TCPListener))
		}
		// A connection of the box that is open when the box ends. It is made from outside,
		// because starting a program takes longer than all the rest.
		c, err := b.(engine.Networked).Dial(ctx, 3128)
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(c, "CONNECT good.example:7000 HTTP/1.1\r\nHost: good.example:7000\r\n\r\n")
		answer := make([]byte, 12)
		if _, err := io.ReadFull(c, answer); err != nil || string(answer) != "HTTP/1.1 200" {
			t.Errorf("%q, %v", answer, err)
		}
		defer p.Wait()
		defer p.Shut()
		defer c.Close()
	}
	for range 5 { // what is made once
		one()
	}
	runtime.GC()
	before := holdingsNow(t)
	for range count {
		one()
	}
	await(t, "everything is given back", func() string {
		return holdingsNow(t).more(before)
	})
}

// TestNetworkLeavesNothing: neither the daemon nor its launcher keeps anything of many sessions that were
// removed while streams ran in both directions.
func TestNetworkLeavesNothing(t *testing.T) {
	d, c := startDaemon(t, streaming)
	s := newStreams(t, 0)
	round := func(n int) {
		for i := range n {
			id := fmt.Sprint("s", i)
			names := []string{"connect/up/good.example", "socks/down/good.example"}
			startStreams(t, c, id, "p", session("streams"), names...)
			s.flowing(t, names...)
			if err := c.Remove(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			s.ended(t, names...)
		}
	}
	round(3) // what is made once
	before := holdingsNow(t)
	count := 20
	if testutil.Full() {
		count = 300
	}
	round(count)
	await(t, "everything is given back", func() string {
		now := holdingsNow(t)
		if n, had := now.files[d.PID()], before.files[d.PID()]; n > had+2 { // a connection of a client may be closing
			return fmt.Sprintf("the daemon has %d descriptors, had %d", n, had)
		}
		return now.more(before)
	})
}

// await calls missing until it says that nothing is missing: the kernel tears down in the
// background, and tells nobody.
func await(t *testing.T, what string, missing func() string) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		m := missing()
		if m == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("%s: %s", what, m)
			return
		}
		time.Sleep(pause)
	}
}

// works checks that a session has its network, both ports of it.
func works(t *testing.T, c interface {
	Exec(context.Context, string, apitypes.ExecRequest) (*apitypes.ExecResult, error)
}, id string, spec *apitypes.SessionSpec, when string) {
	t.Helper()
	var last string
	await(t, id+" works "+when, func() string {
		r, err := c.Exec(t.Context(), id, apitypes.ExecRequest{Shell: "python3 -c '" + strings.ReplaceAll(ports, "'", `'"'"'`) + "' && curl -sS -o /dev/stderr -w '%{http_code}' http://good.example/", Session: spec})
		switch {
		case err != nil:
			last = err.Error()
		case r.Stdout != "0 0 200":
			last = fmt.Sprintf("%q %q", r.Stdout, r.Stderr)
			if r.Stdout != "111 111 " && !strings.HasPrefix(r.Stdout, "111 111") && r.Stdout != "" {
				t.Errorf("%s %s: half of a network: %s", id, when, last)
			}
		default:
			return ""
		}
		return last
	})
}

// TestLauncherKilled: the launcher dies while it opens networks. There is the whole of one, or
// none, and soon there is one.
func TestLauncherKilled(t *testing.T) {
	d, c := startDaemon(t, streaming)
	rounds := 8
	if testing.Short() {
		rounds = 3
	}
	if testutil.Full() {
		rounds = 100
	}
	works(t, c, "first", session("streams"), "at the beginning")
	refused := 0
	for i := range rounds {
		var pids []int
		await(t, "there is a launcher", func() string {
			if pids = d.Find(daemon.Launcher); len(pids) == 0 {
				return "none"
			}
			return ""
		})
		ids := []string{fmt.Sprint("a", i), fmt.Sprint("b", i)}
		ended := make(chan error, len(ids))
		for _, id := range ids {
			go func() {
				_, err := c.Exec(t.Context(), id, apitypes.ExecRequest{Argv: []string{"true"}, Session: session("streams")})
				ended <- err
			}()
		}
		time.Sleep(time.Duration(rand.IntN(200)) * time.Millisecond) // a random moment of the above
		for _, pid := range pids {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Log(err)
			}
		}
		for range ids {
			if <-ended != nil {
				refused++
			}
		}
		for _, id := range append(ids, "first") {
			works(t, c, id, session("streams"), fmt.Sprint("after kill ", i))
		}
		for _, id := range ids {
			if err := c.Remove(t.Context(), id); err != nil {
				t.Error(err)
			}
		}
	}
	t.Logf("%d of %d requests failed", refused, 2*rounds)
}

// TestLauncherKilledUnderStreams: the launcher dies while streams run and other programs of their box try
// what is not allowed. The streams go on, because no launcher is on their way, and nothing else gets out.
// Networks go off before the answer, with no launcher and with the next one.
func TestLauncherKilledUnderStreams(t *testing.T) {
	d, c := startDaemon(t, streaming)
	s := newStreams(t, 0)
	second := []string{"connect/up/six.example", "socks/down/six.example"}
	inBox := map[string]int{ // a process of each
		"first":  startStreams(t, c, "first", "p", session("streams"), everyWay...),
		"second": startStreams(t, c, "second", "p", session("streams"), second...),
	}
	if _, err := c.Start(t.Context(), "first", apitypes.ProcessRequest{ID: "hostile", Argv: []string{"sh", "-c", hostile}}); err != nil {
		t.Fatal(err)
	}
	s.flowing(t, append(second, everyWay...)...)
	refused := func() (n int64) {
		for _, d := range networkOf(t, c, "first").Denied {
			n += d.Count
		}
		return n
	}
	off := func(id, when string, names []string) {
		t.Helper()
		if _, err := c.Update(t.Context(), id, apitypes.SessionUpdate{LiveWishes: spec.LiveWishes{Network: new(false)}}); err != nil {
			t.Fatal(err)
		}
		if l, open := sockets(t, fmt.Sprint("/proc/", inBox[id]), 3128, 1080); l+open > 0 {
			t.Errorf("%s: %d listeners and %d open sockets in the box after the answer", when, l, open)
		}
		s.ended(t, names...)
		offFor(t, c, id, when)
	}
	world.take()
	rounds := 2
	if testutil.Full() {
		rounds = 50
	}
	for i := range rounds {
		before := refused()
		old := d.Find(daemon.Launcher)
		for _, pid := range old {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Log(err)
			}
		}
		if i == 0 {
			off("second", "without a launcher", second)
		}
		await(t, "there is another launcher", func() string {
			if now := d.Find(daemon.Launcher); len(now) == 0 || slices.ContainsFunc(now, func(pid int) bool { return slices.Contains(old, pid) }) {
				return fmt.Sprint(old, now)
			}
			return ""
		})
		await(t, "attempts were refused meanwhile", func() string {
			if n := refused(); n < before+4 {
				return fmt.Sprint(before, n)
			}
			return ""
		})
		s.flowing(t, everyWay...)
		works(t, c, "first", nil, fmt.Sprint("after kill ", i))
	}
	off("first", "with the next launcher", everyWay)
	if _, open := sockets(t, "/proc/self", 80, 7000); open > 0 {
		t.Errorf("%d open sockets of the daemon", open)
	}
	world.check(t, "at the end")
	hits, _ := world.take()
	for _, h := range hits {
		if !isGood(h.at.Addr()) {
			t.Errorf("an attempt reached %v", h)
		}
	}
}

// hostile tries again and again what the rules of "streams" do not allow.
const hostile = `while :; do
	curl -s -m 5 http://evil.example/
	curl -s -m 5 -x socks5h://127.0.0.1:1080 http://evil.example:7000/
	curl -s -m 5 --noproxy '*' http://` + evilAddr + `/
done`

// TestDaemonKilled: the daemon dies while streams run. Every connection and listener is gone
// with it, and the next daemon opens the network of the same box again.
func TestDaemonKilled(t *testing.T) {
	d, c := startDaemon(t, streaming)
	s := newStreams(t, 0)
	for i := range 2 {
		p := fmt.Sprint("p", i)
		pid := startStreams(t, c, "s", p, session("streams"), everyWay...)
		s.flowing(t, everyWay...)
		box := fmt.Sprintf("/proc/%d", pid)
		if l, open := sockets(t, box, 3128, 1080); l != 2 || open < 2*len(everyWay) {
			t.Fatalf("%d listeners, %d open sockets", l, open)
		}
		if err := d.Kill(); err != nil {
			t.Fatal(err)
		}
		s.ended(t, everyWay...)
		await(t, "the box has no connections", func() string {
			if l, open := sockets(t, box, 3128, 1080); l+open > 0 {
				return fmt.Sprintf("%d listeners, %d open sockets", l, open)
			}
			return ""
		})
		world.check(t, "without a daemon")
		if err := d.Start(); err != nil {
			t.Fatal(err)
		}
		works(t, c, "s", nil, "with the next daemon")
		if _, err := os.Stat(box); err != nil {
			t.Errorf("the box did not survive: %v", err)
		}
	}
}

// TestBoxEnds: a box ends, or is removed, while its connections live.
func TestBoxEnds(t *testing.T) {
	_, c := startDaemon(t, streaming)
	s := newStreams(t, 0)
	works(t, c, "bystander", session("streams"), "before")
	for name, end := range map[string]func(pid int){
		"killed":  func(pid int) { killBox(t, pid) },
		"removed": func(int) { c.Remove(t.Context(), "s") },
	} {
		pid := startStreams(t, c, "s", "p", session("streams"), everyWay...)
		s.flowing(t, everyWay...)
		end(pid)
		s.ended(t, everyWay...)
		await(t, name+": the daemon has no connections", func() string {
			if _, open := sockets(t, "/proc/self", 80, 7000); open > 0 {
				return fmt.Sprint(open)
			}
			return ""
		})
		works(t, c, "s", session("streams"), "after it was "+name)
		works(t, c, "bystander", nil, "after another was "+name)
		if err := c.Remove(t.Context(), "s"); err != nil {
			t.Error(err)
		}
	}
}
