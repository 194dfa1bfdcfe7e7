package native

import (
	"io"
	"strings"
	"testing"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/boxtest"
	"github.com/boxd/boxd/internal/testutil"
)

// TestDiskLimits fills everything that a box can write to.
func TestDiskLimits(t *testing.T) {
	testutil.Long(t)
	e := start(t)
	ro := engine.Spec{TmpSize: 4 * mib}
	rw := engine.Spec{TmpSize: 4 * mib, UpperSize: 8 * mib, WritableRoot: true}
	const bytes = `exec head -c 64M /dev/zero > "$0/file"`
	const files = `import os, sys
n = 0
while True:
    os.close(os.open(f"{sys.argv[1]}/{n}", os.O_CREAT)); n += 1`
	for _, c := range []struct {
		name  string
		spec  engine.Spec
		dir   string
		limit string
	}{
		{"/tmp", ro, "/tmp", "/tmp 4 MiB"},
		{"home", ro, "/home/box", "/home/box 4 MiB"},
		{"shm", ro, "/dev/shm", "/dev/shm 4 MiB"},
		{"/var/tmp", ro, "/var/tmp", "/tmp 4 MiB"},
		{"upper /usr", rw, "/usr/local", "/ 8 MiB"},
		{"upper /etc", rw, "/etc", "/ 8 MiB"},
		{"upper /opt", rw, "/opt", "/ 8 MiB"},
		{"upper /tmp", rw, "/tmp", "/tmp 4 MiB"},
	} {
		t.Run(c.name+" bytes", func(t *testing.T) {
			b, ok := createDisk(t, e, c.spec)
			if !ok {
				return
			}
			wantFull(t, run(t, b, engine.Command{Args: []string{"sh", "-c", bytes, c.dir}}), c.limit)
			// Full already when the command starts: not this one's doing.
			want(t, run(t, b, shell("exit 3")), engine.Exited, 3)
		})
		t.Run(c.name+" files", func(t *testing.T) {
			b, ok := createDisk(t, e, c.spec)
			if !ok {
				return
			}
			wantFull(t, run(t, b, python(files, c.dir)), c.limit)
		})
	}
}

func createDisk(t *testing.T, e engine.Engine, spec engine.Spec) (engine.Box, bool) {
	t.Helper()
	if spec.WritableRoot {
		return createWritable(t, e, spec)
	}
	return create(t, e, spec), true
}

func wantFull(t *testing.T, o outcome, limit string) {
	t.Helper()
	want(t, o, engine.DiskQuota, 1)
	if o.Limit != limit || !strings.Contains(o.Stderr, "No space left") {
		t.Errorf("limit %q, stderr %q, want limit %q and no space left", o.Limit, tail(o.Stderr), limit)
	}
}

// TestTmpSizes: each of the three has its size, and neither takes from another.
func TestTmpSizes(t *testing.T) {
	b := newBox(t, engine.Spec{TmpSize: 8 * mib})
	wantOutput(t, b, `for d in /tmp $HOME /dev/shm; do head -c 8388608 /dev/zero > $d/f && stat -f -c '%S %b %a' $d; done`,
		strings.Repeat("4096 2048 0\n", 3))
}

// TestUpperIsThrownAway: what one box changes, no other ever sees, nor the host.
func TestUpperIsThrownAway(t *testing.T) {
	e := start(t)
	b, ok := createWritable(t, e, engine.Spec{})
	if !ok {
		return
	}
	wantOutput(t, b, `set -e; echo x > /usr/bin/boxd-test-made; rm /usr/bin/env; echo y >> /etc/profile; mkdir /new /etc/new /opt/new; cat /usr/bin/boxd-test-made; test ! -e /usr/bin/env; echo ok`, "x\nok\n")
	for range 2 {
		b, _ := createWritable(t, e, engine.Spec{})
		wantOutput(t, b, `test ! -e /usr/bin/boxd-test-made && test -x /usr/bin/env && ! grep -qx y /etc/profile && test ! -e /new && test ! -e /etc/new && test ! -e /opt/new && echo ok`, "ok\n")
	}
	wantHostUntouched(t)
}

// TestFileSize: the writer gets SIGXFSZ at exactly the limit.
func TestFileSize(t *testing.T) {
	b := newBox(t, engine.Spec{Limits: engine.Limits{FileSize: mib}})
	o := run(t, b, shell("exec head -c 2M /dev/zero > /tmp/f"))
	want(t, o, engine.DiskQuota, 128+25)
	if o.Limit != "file size 1 MiB" {
		t.Errorf("limit %q", o.Limit)
	}
	wantOutput(t, b, "stat -c %s /tmp/f; head -c 1M /dev/zero > /tmp/g; echo $?", "1048576\n0\n")
}

// TestOpenFiles: RLIMIT_NOFILE is as requested, soft and hard.
func TestOpenFiles(t *testing.T) {
	b := newBox(t, engine.Spec{Limits: engine.Limits{OpenFiles: 40}})
	wantOutput(t, b, "ulimit -Sn; ulimit -Hn; ulimit -n 41 2>/dev/null || echo refused", "40\n40\nrefused\n")
	o := run(t, b, python("import os, errno\nfds = []\ntry:\n while True: fds.append(os.open('/', os.O_RDONLY))\nexcept OSError as e: print(errno.errorcode[e.errno], max(fds))"))
	if o.Stdout != "EMFILE 39\n" {
		t.Errorf("%q, %q, want EMFILE 39", o.Stdout, tail(o.Stderr))
	}
}

// TestOpenFilesDefault: a program that asks for more open files than the usual 1,024 gets them.
func TestOpenFilesDefault(t *testing.T) {
	b := newBox(t, engine.Spec{})
	wantOutput(t, b, "ulimit -Sn; ulimit -Hn; ulimit -Sn 4096 && ulimit -Sn; ulimit -n 4097 2>/dev/null || echo refused", "1024\n4096\n4096\nrefused\n")
}

// TestOutputLimit floods each stream.
func TestOutputLimit(t *testing.T) {
	testutil.Long(t)
	b := newBox(t, engine.Spec{})
	const limit = 100_000
	for _, c := range []struct {
		name           string
		script         string
		verdict        engine.Verdict
		status         int
		stdout, stderr int64
	}{
		{"flood of stdout", "echo oops >&2; exec cat /dev/zero", engine.OutputLimit, 137, limit, 5},
		{"flood of stderr", "echo fine; exec cat /dev/zero >&2", engine.OutputLimit, 137, 5, limit},
		{"flood by a child", "cat /dev/zero & exec sleep 3600", engine.OutputLimit, 137, limit, 0},
		{"flood by a daemon", "setsid sh -c 'cat /dev/zero &' & exec sleep 3600", engine.OutputLimit, 137, limit, 0},
		{"exactly", "head -c 100000 /dev/zero", engine.Exited, 0, limit, 0},
		{"exactly, both", "head -c 100000 /dev/zero; head -c 100000 /dev/zero >&2; exit 7", engine.Exited, 7, limit, limit},
		{"one more", "head -c 100001 /dev/zero; exec sleep 3600", engine.OutputLimit, 137, limit, 0},
		{"one more, then the end", "exec head -c 100001 /dev/zero", engine.OutputLimit, 137, limit, 0},
		{"signals ignored", "trap '' TERM INT PIPE; while :; do head -c 65536 /dev/zero; done", engine.OutputLimit, 137, limit, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			var stdout, stderr counter
			cmd := shell(c.script)
			cmd.OutputLimit, cmd.Stdout, cmd.Stderr = limit, &stdout, &stderr
			o := run(t, b, cmd)
			want(t, o, c.verdict, c.status)
			if o.Verdict == engine.OutputLimit && o.Limit != "97.66 KiB" {
				t.Errorf("limit %q", o.Limit)
			}
			if int64(stdout) != c.stdout || int64(stderr) != c.stderr {
				t.Errorf("%d and %d bytes came, want %d and %d", stdout, stderr, c.stdout, c.stderr)
			}
			if n, m := boxtest.Figure(t, "stdout", o.Receipt.StdoutBytes), boxtest.Figure(t, "stderr", o.Receipt.StderrBytes); n != c.stdout || m != c.stderr {
				t.Errorf("receipt: %d and %d bytes, want %d and %d", n, m, c.stdout, c.stderr)
			}
		})
	}
}

// counter counts the bytes written to it.
type counter int64

func (c *counter) Write(b []byte) (int, error) { *c += counter(len(b)); return len(b), nil }

var _ io.Writer = (*counter)(nil)
