package containerd

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/internal/testutil"
	"github.com/boxd/boxd/relay"
	"github.com/boxd/boxd/test/daemon"
	"golang.org/x/sys/unix"
)

// counts is the output of the process of TestSessionsSurvive.
type counts struct {
	text strings.Builder
	next int
}

// add checks that b continues the numbers, one per line, from 0 on.
func (c *counts) add(b []byte) error {
	c.text.Write(b)
	all := c.text.String()
	c.text.Reset()
	for {
		line, rest, whole := strings.Cut(all, "\n")
		if !whole {
			c.text.WriteString(all)
			return nil
		}
		if line != fmt.Sprint(c.next) {
			return fmt.Errorf("line %.40q, must be %d", line, c.next)
		}
		c.next++
		all = rest
	}
}

// TestSessionsSurvive kills containerd, the daemon and the launcher while a managed process counts:
// its client gets every byte once. Then a shim is killed, which ends the box: the session has failed
// with a reason, and has a new box when it is used again and containerd answers.
func TestSessionsSurvive(t *testing.T) {
	containerd := Start(t)
	t.Setenv("BOXD_ENGINES", "containerd")
	testutil.BuildContainerd(t) // beside boxd-init, where it is looked for
	t.Setenv("BOXD_CONTAINERD_ADDRESS", containerd.Address)
	d, c := daemon.ForTest(t, daemon.Config{Dir: testutil.ReachableDir(t, "")})
	ctx, cancel := context.WithTimeout(t.Context(), testutil.Patience())
	defer cancel()
	s, err := c.Ensure(ctx, apitypes.SessionRequest{ID: "s"})
	if err != nil {
		t.Fatal(err)
	}
	if s.Engine != "containerd" {
		t.Fatalf("the session is built by %q", s.Engine)
	}
	p, err := c.Start(ctx, "s", apitypes.ProcessRequest{ID: "p", Argv: []string{"/usr/bin/python3", "-c", `
import time
n = 0
while True:
    print(n, flush=True)
    n += 1
    if n % 50 == 0: time.sleep(0.01)`}})
	if err != nil {
		t.Fatal(err)
	}
	a, err := c.Attach(ctx, "s", "p", client.AttachOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	var got counts
	readOn := func(more int) {
		t.Helper()
		for until := got.next + more; got.next < until; {
			e, err := a.Recv()
			if err != nil {
				t.Fatalf("after %d lines: %v", got.next, err)
			}
			switch e := e.(type) {
			case relay.Data:
				if err := got.add(e.Bytes); err != nil {
					t.Fatal(err)
				}
			case relay.Gap:
				t.Fatalf("lost bytes %d to %d", e.From, e.To)
			case relay.Exited:
				t.Fatalf("it has ended: %+v", e)
			}
		}
	}
	readOn(1000)
	containerd.Kill()
	readOn(1000)
	if err := d.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := d.Start(); err != nil {
		t.Fatal(err)
	}
	readOn(1000)
	for _, pid := range d.Find(daemon.Launcher) {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	readOn(1000)
	containerd.Restart()
	readOn(1000)
	if now, err := c.Process(ctx, "s", "p"); err != nil || now.PID != p.PID {
		t.Errorf("the process is %+v, %v; it was %+v", now, err, p)
	}
	a.Close()

	before, err := c.Session(ctx, "s")
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range containerd.Shims() {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	awaitWithin(t, "the session has failed", func() bool {
		now, err := c.Session(ctx, "s")
		return err == nil && now.State == "failed" && now.Reason != ""
	})
	echo := func() (*apitypes.ExecResult, error) {
		return c.Exec(ctx, "s", apitypes.ExecRequest{Argv: []string{"/bin/echo", "again"}})
	}
	containerd.AwaitEmpty() // it gives itself 5 s to clean up after a shim, and the bundle stays if it is stopped meanwhile
	containerd.Signal(unix.SIGSTOP)
	if r, err := echo(); err == nil || !strings.Contains(err.Error(), "does not answer within") || strings.Contains(err.Error(), "\n") {
		t.Errorf("while containerd hangs: %+v, %v; want one line that says so", r, err)
	}
	if now, err := c.Session(ctx, "s"); err != nil || now.State != "failed" || now.Reason == "" {
		t.Errorf("while containerd hangs: %+v, %v", now, err)
	}
	containerd.Signal(unix.SIGCONT)
	awaitWithin(t, "the next use", func() bool { // what was found out holds for some seconds
		r, err := echo()
		return err == nil && r.Stdout == "again\n"
	})
	if after, err := c.Session(ctx, "s"); err != nil || after.State == "failed" {
		t.Errorf("after the next use %+v, %v; before %+v", after, err, before)
	}
	if err := c.Remove(ctx, "s"); err != nil {
		t.Error(err)
	}
}
