package badluck

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"golang.org/x/sys/unix"
)

// hostPID waits until a command with the unique word in its command line runs, and
// returns its pid on the host.
func hostPID(t *testing.T, word string) int {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(2 * time.Millisecond) { // nothing announces it
		names, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, name := range names {
			b, _ := os.ReadFile(name)
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name)))
			if err == nil && pid != os.Getpid() && bytes.HasPrefix(b, []byte("sleep\x00"+word)) {
				return pid
			}
		}
	}
	t.Fatalf("no process with %q", word)
	return 0
}

// awaitEnd waits for the end of a process that is not ours.
func awaitEnd(t *testing.T, pid int) {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err == unix.ESRCH {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, int(patience.Milliseconds()))
		if err == unix.EINTR {
			continue
		}
		if n != 1 || err != nil {
			t.Fatalf("process %d still runs after %v", pid, patience)
		}
		return
	}
}

// workGroups lists the cgroups in which something of a box runs.
func workGroups(t *testing.T, box string) (busy []string) {
	t.Helper()
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		names, _ := filepath.Glob(filepath.Join(root, "boxd", "*."+box, "work", "*", "cgroup.events"))
		for _, name := range names {
			if b, _ := os.ReadFile(name); bytes.Contains(b, []byte("populated 1")) {
				busy = append(busy, name)
			}
		}
	}
	return busy
}

// TestClientVanishes: when the client of a command vanishes, the command is killed.
func TestClientVanishes(t *testing.T) {
	_, c := start(t, newDir(t))
	s := ensure(t, c, "vanish")
	for _, stream := range []bool{false, true} {
		word := fmt.Sprintf("31%d", time.Now().UnixNano()%1_000_000_000)
		ctx, vanish := context.WithCancel(timeLimit(t))
		ended := make(chan error, 1)
		go func() {
			// Descendants of a session of their own go with it.
			r := apitypes.ExecRequest{Shell: "setsid sleep " + word + " & sleep " + word, Timeout: apitypes.Duration(25 * time.Second)}
			var err error
			if stream {
				_, err = c.ExecStream(ctx, "vanish", r, nil, nil)
			} else {
				_, err = c.Exec(ctx, "vanish", r)
			}
			ended <- err
		}()
		pid := hostPID(t, word)
		vanish()
		if err := <-ended; err == nil {
			t.Error("an exec that was given up has a result")
		}
		awaitEnd(t, pid)
		// The next command is after the end of the one before, in time.
		run(t, c, "vanish", "true")
		waitFor(t, "cgroups of the command to be empty", func() bool { return len(workGroups(t, s.Box)) == 0 })
	}
}

// waitFor polls for what nothing announces.
func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waiting for %s: not after %v", what, patience)
		}
	}
}

// TestHalfOpen: connections that send nothing, or only a part, delay other clients only until they are
// cut off.
func TestHalfOpen(t *testing.T) {
	d, c := start(t, newDir(t))
	ensure(t, c, "busy")
	const connections = 10_000
	var open []net.Conn
	defer func() {
		for _, conn := range open {
			conn.Close()
		}
	}()
	refused := 0
	for i := range connections {
		conn, err := net.DialTimeout("unix", d.Socket(), 100*time.Millisecond)
		if err != nil {
			refused++ // the backlog is full
			continue
		}
		if i%2 == 0 {
			_, _ = conn.Write([]byte("POST /v1/sessions HTTP/1.1\r\nHost: b\r\nContent-Length: 100\r\n"))
		}
		open = append(open, conn)
	}
	t.Logf("%d connections are open, %d were refused", len(open), refused)
	began := time.Now()
	waitFor(t, "a request to be served", func() bool {
		fresh, err := client.New(client.Options{Socket: d.Socket()})
		if err != nil {
			t.Fatal(err)
		}
		defer fresh.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_, err = fresh.Status(ctx)
		return err == nil
	})
	t.Logf("a new client was served after %v", time.Since(began).Round(time.Millisecond))
	if out := run(t, c, "busy", "echo still here"); out != "still here\n" {
		t.Errorf("output %q", out)
	}
}

// TestNeverReads: clients that attach and do not read cost the daemon no memory, and other clients no
// time.
func TestNeverReads(t *testing.T) {
	d, c := start(t, newDir(t))
	ensure(t, c, "flood")
	for _, p := range []apitypes.ProcessRequest{
		{ID: "waits", Argv: []string{"cat", "/dev/zero"}},
		{ID: "drops", Argv: []string{"cat", "/dev/zero"}, DropOldest: true},
	} {
		if _, err := c.Start(timeLimit(t), "flood", p); err != nil {
			t.Fatal(err)
		}
	}
	before := rss(t, d.PID())
	for i := range 20 {
		id := []string{"waits", "drops"}[i%2]
		r, err := c.AttachOnce(timeLimit(t), "flood", id, client.AttachOptions{Write: i < 2})
		if err != nil {
			t.Fatalf("attaching to %s: %v", id, err)
		}
		defer r.Close()
	}
	bytes := "1000000000"                                   // while the others flood
	if testing.Short() || os.Getenv("BOXD_TEST_VM") != "" { // an emulated processor
		bytes = "50000000"
	}
	if out := run(t, c, "flood", "head -c "+bytes+" /dev/zero | wc -c"); strings.TrimSpace(out) != bytes {
		t.Errorf("output %q", out)
	}
	const most = 64 << 20
	if grown := rss(t, d.PID()) - before; grown > most {
		t.Errorf("the daemon has grown by %d MiB, must be less than %d", grown>>20, most>>20)
	}
}

// rss is VmRSS in bytes.
func rss(t *testing.T, pid int) int64 {
	t.Helper()
	return statusNumber(t, pid, "VmRSS", 10) << 10
}

// statusNumber is a number in /proc/<pid>/status.
func statusNumber(t *testing.T, pid int, field string, base int) int64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, field+":"); ok {
			n, err := strconv.ParseInt(strings.Fields(rest)[0], base, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("no %s in the status of process %d", field, pid)
	return 0
}
