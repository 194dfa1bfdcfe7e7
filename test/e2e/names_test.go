package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/boxd/boxd/test/services"
)

// wantShown checks what ps shows of a process: its name, its arguments, and the names of its threads.
func wantShown(t *testing.T, pid int, name, args string, threads ...string) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/", pid)
	comm, _ := os.ReadFile(dir + "comm")
	line, _ := os.ReadFile(dir + "cmdline")
	shown := strings.ReplaceAll(strings.TrimSuffix(string(line), "\x00"), "\x00", " ")
	if string(comm) != name+"\n" || !regexp.MustCompile("^"+args+"$").MatchString(shown) {
		t.Errorf("ps shows %q %q, want %q %s", comm, shown, name, args)
	}
	tasks, _ := filepath.Glob(dir + "task/*/comm")
	for _, task := range tasks {
		thread, err := os.ReadFile(task)
		if err == nil && !strings.Contains(" "+strings.Join(append(threads, name), " ")+" ", " "+strings.TrimSpace(string(thread))+" ") {
			t.Errorf("%s has a thread %q", name, thread)
		}
	}
}

// TestNames: ps shows what docs/operations.md says, on the host and in a box.
func TestNames(t *testing.T) {
	d := newDaemon(t)
	d.env = append(d.env, "BOXD_POOL=1")
	d.start()
	shown := &signalled{daemon: d}
	id := func(session string) string { return d.sessionOf(session).Box }
	init := func(session string) int {
		t.Helper()
		name := id(session) // of its cgroups, unless the pool has built it
		links, _ := filepath.Glob(filepath.Join(d.dir, "run/run-*/boxes", name, "born"))
		for _, link := range links {
			name, _ = os.Readlink(link)
		}
		pids := services.Init(t, name)
		if len(pids) != 1 {
			t.Fatalf("PID 1 of %s: %v", session, pids)
		}
		return pids[0]
	}
	// Two requests have the pool build a box, which gets its name when a third one takes it.
	for _, session := range []string{"first", "second"} {
		d.says(0, "boxd-agent\n"+session+"\n", "exec", session, "--", "sh", "-c", "cat /proc/1/comm; echo "+session)
		wantShown(t, init(session), "boxd-agent", "boxd-agent box="+id(session), "spawner")
	}
	await(t, "the pool has a box", func() bool { return d.pool().Ready > 0 })
	d.says(0, "boxd-agent\n", "exec", "third", "--", "cat", "/proc/1/comm")
	if d.pool().Hits != 1 {
		t.Errorf("%+v: the third box is not of the pool", d.pool())
	}
	wantShown(t, init("third"), "boxd-agent", "boxd-agent box="+id("third"), "spawner")
	d.says(0, "boxd-agent box="+id("third")+"\n", "exec", "third", "--", "sh", "-c", `tr '\0' '\n' </proc/1/cmdline`)

	wantShown(t, d.cmd.Process.Pid, "boxd", ".*boxd serve --state-dir "+d.dir+" .*")
	wantShown(t, shown.pids("launcher")[0], "boxd-launcher", "boxd-init launcher --service --state-dir "+d.dir+"/run .*")
	wantShown(t, shown.pids("keeper")[0], "boxd-keeper", "boxd-init keeper --state-dir "+d.dir+"/run .*")

	cmd, _, _ := d.begin("run", "--direct", "--state-dir", d.state, "--", "sh", "-c", "echo ready; exec sleep 3600")
	launcher := children(t, cmd.Process.Pid)[0]
	wantShown(t, launcher, "boxd-launcher", "boxd-init launcher --state-dir "+d.state+" .*")
	wantShown(t, children(t, launcher)[0], "boxd-agent", "boxd-agent box=box-[a-z2-7]{26}", "spawner")
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
}
