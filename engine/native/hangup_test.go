package native

import (
	"context"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native/rpc"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/testutil"
	"golang.org/x/sys/unix"
)

// TestHangUp: the agent itself kills the commands of a client that is gone, and leaves
// managed processes alone.
func TestHangUp(t *testing.T) {
	e := hostileEngine(t)
	made, err := e.Create(t.Context(), engine.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	b := made.(*box)
	m, err := b.Launch(t.Context(), engine.Managed{Key: "k", Args: []string{"sleep", "1000"}})
	if err != nil {
		t.Fatal(err)
	}
	p, err := b.Start(t.Context(), engine.Command{Args: []string{"sh", "-c", "sleep 1000 & sleep 1000"}})
	if err != nil {
		t.Fatal(err)
	}
	command, kept := dup(t, p.(*process).slot.birth[0]), m.(*managed).slot.birth[0]
	defer command.Close()
	b.agent.Close()
	within(t, "the death of the command", func() {
		for members(t, command) != "" {
			time.Sleep(time.Millisecond) // nothing announces it to a client that is gone
		}
	})
	if members(t, kept) == "" {
		t.Error("the managed process is gone")
	}
	if _, err := p.Wait(); err != nil {
		t.Error(err)
	}
	if err := b.Remove(context.Background()); err != nil {
		t.Error(err)
	}
}

// members returns the pids of a cgroup.
func members(t *testing.T, dir *os.File) string {
	t.Helper()
	f, err := linux.Openat2(dir, "cgroup.procs", unix.OpenHow{Flags: unix.O_RDONLY})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil {
		t.Error(err)
	}
	return string(b)
}

// TestAgentThatAcceptsNobody: a stopped agent whose queue is full does not block the
// launcher. Connecting to it is an error, and the box can be removed.
func TestAgentThatAcceptsNobody(t *testing.T) {
	testutil.Long(t)
	e := hostileEngine(t)
	made, err := e.Create(t.Context(), engine.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	b := made.(*box)
	if err := linux.PidfdSignal(b.pidfd, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("/proc/sys/net/core/somaxconn")
	if err != nil {
		t.Fatal(err)
	}
	queue, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	within(t, "connecting until the queue is full", func() {
		for n := 0; err == nil && n < queue+100; n++ {
			var files []*os.File
			files, err = e.link.call(t.Context(), rpc.TypeConnect, rpc.Connect{ID: b.id}, nil)
			linux.CloseAll(files)
		}
	})
	if err == nil || !strings.Contains(err.Error(), "connecting to agent") {
		t.Errorf("connecting more often than the queue is long: %v", err)
	}
	if err := b.Remove(context.Background()); err != nil {
		t.Error(err)
	}
}
