package seccomp

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/boxd/boxd/internal/testutil"
)

// TestPrograms runs programs of the host under the filter. fails is part of
// what those print that the policy breaks on purpose, each for a setuid or
// setgid bit or a namespace; it is empty for the rest.
func TestPrograms(t *testing.T) {
	testutil.Long(t)
	for _, c := range []struct {
		program, script, fails string
	}{
		{"sh", `echo a | cat | sort | wc -l; sleep 0 & wait; ulimit -n`, ""},
		{"cp", `umask 022; echo a >a; chmod 750 a; cp -p a b; cp a c; install -m 700 a d; ln a e; mv b f; mkdir -p x/y; cp -a x z`, ""},
		{"tar", `umask 022; mkdir in out; echo a >in/a; tar cf - in | tar -C out -xpf -; tar cf - in | tar -C out -xf - --no-same-permissions`, ""},
		{"mkfifo", `mkfifo f; (echo a >f &) ; cat f`, ""},
		{"git", `git init -q r; cd r; git -c user.name=a -c user.email=a@b commit -q --allow-empty -m a; git clone -q . ../s; git log --oneline`, ""},
		{"gcc", `echo 'int main(void){return 0;}' >m.c; gcc -o m m.c; ./m; gcc -pthread -static -o n m.c; ./n`, ""},
		{"strace", `strace -f -o /dev/null sh -c true`, ""},
		{"gdb", `gdb -batch -ex run --args true`, ""},
		{"python3", `python3 -c 'import socket, multiprocessing as m; print(socket.getaddrinfo("localhost", 80), socket.if_nameindex(), m.Pool(2).map(abs, [-1]))'`, ""},
		{"node", `node -e 'require("os").networkInterfaces(); new (require("worker_threads").Worker)("1", {eval: true})'`, ""},
		{"npm", `npm init -y`, ""},
		{"java", `java -version`, ""},
		{"perl", `perl -MIO::Socket::INET -e 'IO::Socket::INET->new(Listen => 1, LocalAddr => "127.0.0.1") or die $!'`, ""},
		{"dpkg-deb", `mkdir -p p/DEBIAN p/bin; printf 'Package: p\nVersion: 1\nArchitecture: all\nMaintainer: a\nDescription: p\n' >p/DEBIAN/control; echo a >p/bin/a; chmod 755 p/bin/a p/DEBIAN; dpkg-deb -b p p.deb; dpkg-deb -x p.deb q`, ""},

		{"cp", `cp -p suid b`, "preserving permissions"},
		{"tar", `mkdir out; tar cf - suid | tar -C out -xpf -`, "Cannot change mode"},
		{"install", `install -d -m 2775 d`, "cannot change permissions"},
		{"mkdir", `mkdir -m 2755 d`, "cannot change permissions"},
		{"git", `git init -q --shared r`, "writable by group"},
		{"chmod", `mkdir sgid/d; chmod 700 sgid/d`, "changing permissions"}, // d has inherited its bit
		{"unshare", `unshare -U true`, "Operation not permitted"},
		{"setarch", `setarch -R true`, "Operation not permitted"},
	} {
		t.Run(c.program, func(t *testing.T) {
			testutil.RequireProgram(t, c.program)
			dir := t.TempDir()
			mustRun(t, exec.CommandContext(t.Context(), "sh", "-c", `echo a >suid; chmod 4755 suid; mkdir sgid; chmod 2755 sgid`), dir)
			out, err := runIn(as(t, "exec", "/bin/sh", "-ec", c.script), dir)
			if c.fails == "" && err != nil {
				t.Errorf("%s: %v\n%s", c.script, err, out)
			}
			if c.fails != "" && (err == nil || !strings.Contains(out, c.fails)) {
				t.Errorf("%s: %v, want a failure that says %q\n%s", c.script, err, c.fails, out)
			}
		})
	}
}

func mustRun(t *testing.T, cmd *exec.Cmd, dir string) {
	t.Helper()
	if out, err := runIn(cmd, dir); err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
	}
}

func runIn(cmd *exec.Cmd, dir string) (string, error) {
	cmd.Dir = dir
	cmd.Env = append(cmd.Environ(), "LC_ALL=C", "HOME="+dir)
	out, err := cmd.CombinedOutput()
	return string(out), err
}
