package conformance

import (
	"io"
	"strings"
	"testing"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/boxtest"
)

// diskLimits fills everything that a box can write to.
func (e *suite) diskLimits(t testing.TB) {
	ro := engine.Spec{TmpSize: 4 * boxtest.MiB}
	rw := engine.Spec{TmpSize: 4 * boxtest.MiB, UpperSize: 8 * boxtest.MiB, WritableRoot: true}
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
		sub(t, c.name+" bytes", func(t testing.TB) {
			b, ok := e.createDisk(t, c.spec)
			if !ok {
				return
			}
			boxtest.WantVolumeFull(t, boxtest.Run(t, b, engine.Command{Args: []string{"sh", "-c", boxtest.FillBytes, c.dir}}), c.limit)
			// Full already when the command starts: not this one's doing.
			boxtest.Want(t, boxtest.Run(t, b, boxtest.Shell("exit 3")), engine.Exited, 3)
		})
		sub(t, c.name+" files", func(t testing.TB) {
			b, ok := e.createDisk(t, c.spec)
			if !ok {
				return
			}
			boxtest.WantVolumeFull(t, boxtest.Run(t, b, boxtest.Python(boxtest.FillFiles, c.dir)), c.limit)
		})
	}
}

func (e *suite) createDisk(t testing.TB, spec engine.Spec) (engine.Box, bool) {
	t.Helper()
	if spec.WritableRoot {
		return e.createWritable(t, spec)
	}
	return e.create(t, spec), true
}

// tmpSizes: each of the three has its size, and neither takes from another.
func (e *suite) tmpSizes(t testing.TB) {
	b := e.create(t, engine.Spec{TmpSize: 8 * boxtest.MiB})
	boxtest.WantOutput(t, b, `for d in /tmp $HOME /dev/shm; do head -c 8388608 /dev/zero > $d/f && stat -f -c '%S %b %a' $d; done`,
		strings.Repeat("4096 2048 0\n", 3))
}

// upperIsThrownAway: what one box changes, no other ever sees, nor the host.
func (e *suite) upperIsThrownAway(t testing.TB) {
	b, ok := e.createWritable(t, engine.Spec{})
	if !ok {
		return
	}
	boxtest.WantOutput(t, b, `set -e; echo x > /usr/bin/boxd-test-made; rm /usr/bin/env; echo y >> /etc/profile; mkdir /new /etc/new /opt/new; cat /usr/bin/boxd-test-made; test ! -e /usr/bin/env; echo ok`, "x\nok\n")
	for range 2 {
		b, _ := e.createWritable(t, engine.Spec{})
		boxtest.WantOutput(t, b, `test ! -e /usr/bin/boxd-test-made && test -x /usr/bin/env && ! grep -qx y /etc/profile && test ! -e /new && test ! -e /etc/new && test ! -e /opt/new && echo ok`, "ok\n")
	}
	boxtest.WantHostUntouched(t)
}

// fileSize: the writer gets SIGXFSZ at exactly the limit.
func (e *suite) fileSize(t testing.TB) {
	b := e.create(t, engine.Spec{Limits: engine.Limits{FileSize: boxtest.MiB}})
	o := boxtest.Run(t, b, boxtest.Shell("exec head -c 2M /dev/zero > /tmp/f"))
	boxtest.Want(t, o, engine.DiskQuota, 128+25)
	if o.Limit != "file size 1 MiB" {
		t.Errorf("limit %q", o.Limit)
	}
	boxtest.WantOutput(t, b, "stat -c %s /tmp/f; head -c 1M /dev/zero > /tmp/g; echo $?", "1048576\n0\n")
}

// openFiles: RLIMIT_NOFILE is as requested, soft and hard.
func (e *suite) openFiles(t testing.TB) {
	b := e.create(t, engine.Spec{Limits: engine.Limits{OpenFiles: 40}})
	boxtest.WantOutput(t, b, "ulimit -Sn; ulimit -Hn; ulimit -n 41 2>/dev/null || echo refused", "40\n40\nrefused\n")
	o := boxtest.Run(t, b, boxtest.Python("import os, errno\nfds = []\ntry:\n while True: fds.append(os.open('/', os.O_RDONLY))\nexcept OSError as e: print(errno.errorcode[e.errno], max(fds))"))
	if o.Stdout != "EMFILE 39\n" {
		t.Errorf("%q, %q, want EMFILE 39", o.Stdout, boxtest.Tail(o.Stderr))
	}
}

// openFilesDefault: a program that asks for more open files than the usual 1,024 gets them.
func (e *suite) openFilesDefault(t testing.TB) {
	b := e.create(t, engine.Spec{})
	boxtest.WantOutput(t, b, "ulimit -Sn; ulimit -Hn; ulimit -Sn 4096 && ulimit -Sn; ulimit -n 4097 2>/dev/null || echo refused", "1024\n4096\n4096\nrefused\n")
}

// outputLimit floods each stream.
func (e *suite) outputLimit(t testing.TB) {
	b := e.create(t, engine.Spec{})
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
		sub(t, c.name, func(t testing.TB) {
			var stdout, stderr counter
			cmd := boxtest.Shell(c.script)
			cmd.OutputLimit, cmd.Stdout, cmd.Stderr = limit, &stdout, &stderr
			o := boxtest.Run(t, b, cmd)
			boxtest.Want(t, o, c.verdict, c.status)
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

// createWritable is create for a box with a writable root, if there can be one: see
// boxtest.WantNoWritableRoot.
func (e *suite) createWritable(t testing.TB, spec engine.Spec) (b engine.Box, ok bool) {
	t.Helper()
	spec.WritableRoot = true
	b, err := e.tryCreate(t.Context(), spec)
	if err != nil {
		boxtest.WantNoWritableRoot(t, err)
		return nil, false
	}
	t.Cleanup(func() { boxtest.Remove(t, b) })
	return b, true
}
