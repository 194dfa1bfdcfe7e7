package native

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/testutil"
	"golang.org/x/sys/unix"
)

// TestBadMounts: each is refused with one line that names field, value and rule,
// for a new box and for a running one, and nothing is left of the attempt.
func TestBadMounts(t *testing.T) {
	testutil.Long(t)
	state := stateDir(t)
	e := startIn(t, state)
	good := hostDir(t, 0, 0)
	socket := filepath.Join(good, "socket")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	links := map[string]string{"to-etc": "/etc", "to-root": "/", "to-proc": "/proc", "to-state": state, "loop": "loop"}
	for name, target := range links {
		if err := os.Symlink(target, filepath.Join(good, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(unix.Mkfifo(good+"/fifo", 0o600), unix.Mknod(good+"/null", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))), os.WriteFile(good+"/file", nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	b := create(t, e, engine.Spec{})
	// The box's own root makes symlinks where it can.
	wantOutput(t, b, "ln -s /etc /tmp/link; ln -s / $HOME/root; ln -s /tmp/link/x /tmp/deep; echo ok", "ok\n")
	type row struct{ source, target string }
	var rows []row
	for _, source := range []string{"", "relative", "./x", "/no/such/dir", "/etc/passwd/x", "/", "//", "/etc", "/etc/ssl", "/etc/passwd", "/proc", "/proc/self/root", "/proc/self/fd", "/proc/self/cwd",
		"/sys", "/sys/fs/cgroup", "/dev", "/dev/null", "/dev/shm", "/root", "/boot", "/run", state, filepath.Join(state, "lock"), socket, good + "/fifo", good + "/null",
		good + "/to-etc", good + "/to-root", good + "/to-proc", good + "/to-state", good + "/to-etc/../etc", good + "/loop", good + "/x\x00y", good + "/new\nline"} {
		if _, err := os.Stat("/boot"); err != nil && source == "/boot" {
			continue
		}
		rows = append(rows, row{source, "/data"})
	}
	for _, target := range []string{"", "data", "/", "//", "/..", "/../x", "/data/..", "/data/../../x", "/a//b", "/a/", "/./a", "/proc", "/proc/1", "/proc/sys/kernel", "/dev", "/dev/null", "/sys", "/etc", "/a\x00b"} {
		rows = append(rows, row{good, target})
	}
	for _, r := range rows {
		m := []engine.Mount{{Source: r.source, Target: r.target}}
		second, err := e.Create(t.Context(), engine.Spec{Mounts: m})
		wantBadMount(t, r.source, r.target, err)
		if err == nil {
			remove(t, second)
		}
		wantBadMount(t, r.source, r.target, b.Update(t.Context(), engine.Change{Attach: m}))
	}
	for _, target := range []string{"/tmp/link", "/tmp/link/x", "/home/box/root/opt", "/tmp/deep", "/bin", "/bin/sh", "/usr/nosuch", "/usr/bin/env/x", "/var/run/x"} {
		wantBadMount(t, good, target, b.Update(t.Context(), engine.Change{Attach: []engine.Mount{{Source: good, Target: target}}}))
	}
	wantBadMount(t, good, "/usr/bin/env", b.Update(t.Context(), engine.Change{Attach: []engine.Mount{{Source: good, Target: "/usr/bin/env"}}}))
	wantBadMount(t, good+"/file", "/opt", b.Update(t.Context(), engine.Change{Attach: []engine.Mount{{Source: good + "/file", Target: "/opt"}}}))
	if o := run(t, b, shell("cat /proc/self/mountinfo")); strings.Contains(o.Stdout, filepath.Base(good)) {
		t.Errorf("something was mounted after all: %s", o.Stdout)
	}
	for _, d := range []string{"/etc/x", "/opt/x", "/x", "/data"} {
		if _, err := os.Lstat(d); err == nil && d != "/data" {
			t.Errorf("%s was made on the host", d)
		}
	}
}
