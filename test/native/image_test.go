package native

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/boxtest"
	"github.com/boxd/boxd/internal/testutil"
)

// TestReadOnlyRoot tries to write everywhere but where a box may.
func TestReadOnlyRoot(t *testing.T) {
	testutil.Long(t)
	e := start(t)
	for _, u := range []engine.User{{}, {UID: 1000, GID: 1000}} {
		b := create(t, e, engine.Spec{User: u})
		o := run(t, b, shell(`exec 2>/dev/null; for d in / /usr /usr/bin /usr/lib /bin /lib /etc /etc/ssl /dev /dev/pts /proc /proc/sys /sys /run /var /var/log /opt /srv /root /home /mnt /workspace /.box; do
			test -d $d && { echo x > $d/x || mkdir $d/d || ln -s x $d/l; } && echo $d; done
			for f in /usr/bin/env /etc/passwd /etc/hosts /etc/ld.so.cache /proc/sys/kernel/hostname; do echo x >> $f && echo $f; done
			for f in /usr/bin/env /etc/passwd /usr; do rm -f $f || rmdir $f; test -e $f || echo $f; mv -T $f $f.old && echo $f; chmod 777 $f && echo $f; done; echo done`))
		if o.Stdout != "done\n" {
			t.Errorf("user %d could write: %q", u.UID, o.Stdout)
		}
	}
	boxtest.WantHostUntouched(t)
}

// TestPlaces: what programs take for granted.
func TestPlaces(t *testing.T) {
	testutil.Long(t)
	e := start(t)
	for _, u := range []engine.User{{}, {UID: 1000, GID: 1000}, {UID: 4711, GID: 4711}} {
		b := create(t, e, engine.Spec{User: u, Hostname: "name-1.example"})
		name := "root"
		switch u.UID {
		case 1000:
			name = "user"
		case 4711:
			name = "user4711"
		}
		wantOutput(t, b, `set -e
			whoami; echo $USER; hostname; cat /etc/hostname; getent hosts localhost >/dev/null && echo localhost; getent hosts name-1.example > /dev/null && echo self
			cd $HOME; pwd; printf '#!/bin/sh\necho from home\n' > x; chmod +x x; ./x; rm x
			cd /tmp; printf '#!/bin/sh\necho from tmp\n' > x-$$; chmod +x x-$$; ./x-$$
			printf x > /dev/null; head -c 2 /dev/zero | od -An -tx1 | tr -d ' '; head -c 16 /dev/urandom | wc -c; printf x 2>/dev/null > /dev/full || echo full
			echo x | tee /dev/shm/x-$$; ls /dev | tr '\n' ' '; echo; stat -c %F /dev/ptmx /dev/tty; ls /sys; test -r /etc/shadow || echo no shadow`,
			name+"\n"+name+"\nname-1.example\nname-1.example\nlocalhost\nself\n/home/box\nfrom home\nfrom tmp\n0000\n16\nfull\nx\n"+
				"fd full mqueue null ptmx pts random shm stderr stdin stdout tty urandom zero \nsymbolic link\ncharacter special file\ndevices\nno shadow\n")
	}
}

// TestPrograms: real programs work as they do on the host, with the same output.
func TestPrograms(t *testing.T) {
	testutil.Long(t)
	e := start(t)
	for _, c := range []struct {
		name, needs, script string
		long                bool
	}{
		{"pipeline", "sh", `seq 1 20000 | awk '{ s += $1 * $1 } END { print s }'; find /usr/lib/os-release /etc/ld.so.conf.d | sort | md5sum; printf 'b\na\nc\n' | sort -r | tr a-z A-Z | paste -sd, ; echo $((1 << 40)); ls /usr | sort | head -5`, false},
		{"python", "python3", `python3 -c 'import ssl, sqlite3, json, hashlib, ctypes, tempfile, subprocess, zlib, decimal
print(hashlib.sha256(b"x").hexdigest(), sqlite3.connect(":memory:").execute("select 6*7").fetchone(), decimal.Decimal(1)/7)
print(subprocess.check_output(["echo", "sub"]), tempfile.gettempdir(), ctypes.CDLL(None).abs(-3))'`, false},
		{"python multiprocessing", "python3", `cd /tmp; cat > mp-$$.py <<'END'
import multiprocessing as mp
def square(n): return n * n
if __name__ == "__main__":
    for method in "fork", "spawn", "forkserver":
        with mp.get_context(method).Pool(3) as p: print(method, p.map(square, range(10)))
    q, l = mp.Queue(), mp.Lock()
    p = mp.Process(target=q.put, args=("queued",)); p.start(); print(q.get()); p.join()
    from multiprocessing import shared_memory
    s = shared_memory.SharedMemory(create=True, size=10); s.buf[0] = 7; print(s.buf[0]); s.close(); s.unlink()
END
python3 mp-$$.py; rm mp-$$.py`, true},
		{"python threads and asyncio", "python3", `python3 -c '
import asyncio, concurrent.futures as f
async def main():
    s = await asyncio.start_server(lambda r, w: (w.write(b"hello"), w.close()), "localhost", 0)
    r, w = await asyncio.open_connection("localhost", s.sockets[0].getsockname()[1]); print(await r.read())
    p = await asyncio.create_subprocess_exec("echo", "child", stdout=-1); print(await p.communicate())
asyncio.run(main())
with f.ThreadPoolExecutor(20) as e: print(sum(e.map(abs, range(-50, 0))))'`, false},
		{"node", "node", `node -e 'const {execSync} = require("child_process"), c = require("crypto"); console.log(6*7, execSync("echo sub").toString().trim(), c.createHash("md5").update("x").digest("hex"));
setTimeout(() => require("http").createServer((q, r) => r.end("served")).listen(0, function () { require("http").get({port: this.address().port}, r => r.on("data", d => { console.log(String(d)); process.exit() })) }), 1)'`, true},
		{"gcc", "gcc", `cd /tmp; d=$(mktemp -d); cd $d; cat > x.c <<'END'
#include <pthread.h>
#include <stdio.h>
static void *run(void *p) { *(int *)p = 42; return 0; }
int main(void) { pthread_t t; int n = 0; pthread_create(&t, 0, run, &n); pthread_join(t, 0); printf("%d\n", n); return n; }
END
gcc -O2 -Wall -pthread -o x x.c && ./x; echo $?; cd /; rm -r $d`, true},
		{"bash", "bash", `bash -c 'a=(x y z); echo ${a[@]:1} ${#a[@]}; diff <(seq 3) <(seq 4); coproc cat; echo hi >&${COPROC[1]}; read -u ${COPROC[0]} l; echo $l; echo here <<< x; [[ abc =~ b ]] && echo match'`, false},
		{"perl", "perl", `perl -MPOSIX -e 'print join(",", sort { $a <=> $b } 10, 9, 1), "\n"; print ` + "`echo sub`" + `; my $p = fork; exit 3 if !$p; waitpid $p, 0; print $? >> 8, "\n"'`, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.long {
				testutil.Long(t)
			}
			testutil.RequireProgram(t, c.needs)
			host := exec.CommandContext(t.Context(), "sh", "-c", c.script)
			host.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + t.TempDir(), "LANG=C.UTF-8", "TMPDIR=/tmp"}
			host.Dir = "/tmp"
			wanted, err := host.Output()
			if err != nil {
				t.Fatalf("on the host: %v", err)
			}
			users := []engine.User{{UID: 1000, GID: 1000}, {}}
			if testing.Short() {
				users = users[:1]
			}
			for _, u := range users {
				b := create(t, e, engine.Spec{User: u, Limits: engine.Limits{Memory: 1 << 30}})
				o := run(t, b, shell(c.script))
				want(t, o, engine.Exited, 0)
				if o.Stdout != string(wanted) {
					t.Errorf("user %d: printed %q, on the host %q; stderr %q", u.UID, tail(o.Stdout), tail(string(wanted)), tail(o.Stderr))
				}
			}
		})
	}
}

// TestSetuid: set-user-ID programs of the host run with no more than their user.
func TestSetuid(t *testing.T) {
	var program string
	for _, p := range []string{"/usr/bin/su", "/usr/bin/passwd", "/usr/bin/mount", "/usr/bin/newgrp"} {
		if info, err := os.Stat(p); err == nil && info.Mode()&os.ModeSetuid != 0 {
			program = p
		}
	}
	if program == "" {
		t.Fatal("the host has no set-user-ID program to try")
	}
	b := newBox(t, engine.Spec{User: engine.User{UID: 1000, GID: 1000}})
	// Its loader tells whether the kernel honoured the bit: AT_SECURE and AT_EUID.
	o := run(t, b, engine.Command{Args: []string{program, "--help"}, Env: []string{"LD_SHOW_AUXV=1"}})
	if !strings.Contains(o.Stdout, "AT_EUID:              1000") || !strings.Contains(o.Stdout, "AT_SECURE:            0") {
		t.Errorf("%s: %q, %q", program, o.Stdout, tail(o.Stderr))
	}
	// One of the box's own, if such a bit can be set at all.
	wantOutput(t, b, "cp /usr/bin/id /tmp/id; chmod 6755 /tmp/id 2>/dev/null || chmod 755 /tmp/id; /tmp/id -u", "1000\n")
	other := engine.Command{Args: []string{"/tmp/id", "-u"}, User: &engine.User{UID: 2000, GID: 2000}}
	if o := run(t, b, other); o.Stdout != "2000\n" {
		t.Errorf("set-user-ID program of another user: %q", o.Stdout)
	}
}
