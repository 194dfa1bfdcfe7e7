package compat

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// A suite is a shell script that runs in an empty directory of an unprivileged user. Where
// failures is nil it fails as a whole, else it names what fails in its output.
type suite struct {
	name     string
	needs    []string // programs
	quick    bool     // is part of the usual tests
	failures *regexp.Regexp
	script   string
}

var (
	pythonFailure = regexp.MustCompile(`(?m)^(?:FAIL|ERROR): (\S+ \(\S+\))`)
	goFailure     = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)`)
)

// different are the failures in boxes that have a reason, which docs/compatibility.md gives under
// the same expression. It matches "SUITE: TEST", or "SUITE" where one fails as a whole.
var different = []*regexp.Regexp{
	regexp.MustCompile(`^python socket: .*UDPLITE`),
	regexp.MustCompile(`^python asyncio: test_sendfile_close_peer_in_the_middle_of_receiving`),
}

// suites returns the whole table.
func suites() []suite {
	list := []suite{
		{"chromium", []string{"chromium"}, true, nil, `
printf '<body><script>document.body.textContent = 6 * 7</script>' >page.html
chromium --headless --no-sandbox --disable-gpu --user-data-dir=$PWD/profile --dump-dom "file://$PWD/page.html" 2>log | grep -q 42 || { cat log; exit 1; }`},
		{"matplotlib", []string{"python3"}, true, nil, `
python3 -c '
import numpy, pandas, matplotlib
matplotlib.use("Agg")
import matplotlib.pyplot as plt
pandas.DataFrame({"x": numpy.arange(9) ** 2}).plot().figure.savefig("a.png")'
test "$(head -c 4 a.png | tail -c 3)" = PNG`},
		{"mvn", []string{"mvn"}, true, nil, `mvn --version | cat`},
		{"man", []string{"man"}, true, nil, `man -w ls`},
		{"lscpu", []string{"lscpu"}, true, nil, `lscpu && test "$(nproc --all)" = "$(lscpu -p | grep -vc '^#')"`},
		{"git", []string{"git"}, true, nil, `
git init -q a && cd a && git config user.email a@b && git config user.name a
for i in 1 2 3 4 5 6 7 8 9; do echo $i >$i; git add $i; git commit -qm $i; done
git gc -q && git fsck && cd .. && git clone -q a b && test "$(git -C b rev-list --count HEAD)" = 9`},
		{"sqlite", []string{"sqlite3"}, true, nil, `
sqlite3 a.db 'pragma journal_mode=wal; create table t(x); with recursive c(i) as (select 1 union all select i+1 from c where i<50000) insert into t select i from c; select sum(x) from t; pragma integrity_check' | tail -2 | tr '\n' ' ' | grep -q '1250025000 ok'`},
		{"c with make and cmake", []string{"make", "cmake", "gcc"}, false, nil, `
cp "$IN"/sqlite/sqlite3.c "$IN"/sqlite/sqlite3.h . 
cat >main.c <<'C'
#include "sqlite3.h"
#include <stdio.h>
int main(void) { puts(sqlite3_libversion()); return sqlite3_initialize(); }
C
printf 'main: main.o sqlite3.o\n\t$(CC) -o $@ $^ -lm -lpthread -ldl\n' >Makefile && make -s -j2 && ./main
printf 'cmake_minimum_required(VERSION 3.16)\nproject(p C)\nfind_package(Threads)\nadd_library(sqlite3 SHARED sqlite3.c)\nadd_executable(q main.c)\ntarget_link_libraries(q sqlite3 m Threads::Threads dl)\n' >CMakeLists.txt
cmake -S . -B build >/dev/null && cmake --build build -j2 >/dev/null && ./build/q`},
		{"javac and java", []string{"javac"}, true, nil, `
cat >A.java <<'J'
import java.util.stream.*;
public class A { public static void main(String[] a) throws Exception {
  System.out.println(IntStream.range(0, 1000000).parallel().sum() + " on " + Runtime.getRuntime().availableProcessors()); } }
J
javac A.java && java A | grep -q '^1783293664 '`},
		{"npm and typescript", []string{"npm", "node"}, false, nil, `
cp -r "$IN"/npm cache
printf '{"name":"a","version":"1.0.0","dependencies":{"typescript":"*"}}' >package.json
npm install --offline --no-audit --no-fund --cache "$PWD/cache" 2>&1
printf 'const a: number[] = [1, 2, 3]; console.log(a.reduce((x, y) => x + y));' >a.ts
./node_modules/.bin/tsc --ignoreConfig --strict a.ts && node a.js | grep -qx 6`},
		{"jupyter kernel", []string{"python3"}, false, nil, `
cat >k.py <<'P'
from jupyter_client.manager import start_new_kernel
if __name__ == "__main__":
    m, c = start_new_kernel(kernel_name="python3")
    out = []
    c.execute_interactive("print(6 * 7)", output_hook=lambda msg: out.append(msg["content"].get("text")), timeout=60)
    m.shutdown_kernel(now=True)
    assert "42\n" in out, out
P
HOME=$PWD python3 k.py`},
		{"ffmpeg", []string{"ffmpeg"}, false, nil, `ffmpeg -v error -f lavfi -i testsrc=duration=1:size=320x240 -f lavfi -i sine -t 1 -y a.mkv && ffmpeg -v error -i a.mkv -f null -`},
		{"imagemagick", []string{"/usr/bin/convert"}, true, nil, `/usr/bin/convert -size 64x64 gradient:red-blue -resize 200% a.png && /usr/bin/identify a.png | grep -q 128x128`},
	}
	for _, name := range strings.Fields("os posix subprocess socket select epoll mmap signal threading multiprocessing_fork multiprocessing_spawn " +
		"multiprocessing_forkserver concurrent_futures asyncio pty fcntl resource shutil tempfile sqlite3 ssl time") {
		list = append(list, suite{"python " + name, []string{"python3"}, slices.Contains([]string{"resource", "fcntl", "epoll", "pty"}, name), pythonFailure,
			"python3 -m test -v --timeout 300 test_" + name + " 2>&1"})
	}
	for _, name := range strings.Fields("os os/exec os/signal os/user syscall net net/http time io internal/poll") {
		list = append(list, suite{"go " + name, nil, slices.Contains([]string{"syscall", "internal/poll", "os/user"}, name), goFailure,
			fmt.Sprintf(`cd "$GOROOT"/src/%s && "$IN"/go/%s.test -test.v -test.short -test.timeout 300s 2>&1`, name, strings.ReplaceAll(name, "/", "-"))})
	}
	// Named ones of the classes cpu, vm, io, pipe, file system, network and scheduler, each
	// small: none that is made to attack the kernel.
	for _, name := range strings.Fields("cpu vm pipe fifo poll epoll sock sockpair udp eventfd timerfd futex sem mq msg shm mmap fork vfork pthread clone signal switch " +
		"open dentry dir hdd fallocate flock lockf link symlink rename access chmod seek utime sendfile splice tee memfd get set pty getrandom yield nanosleep") {
		size := ""
		if name == "vm" || name == "mmap" || name == "shm" {
			size = " --" + name + "-bytes 16m"
		}
		if name == "hdd" || name == "fallocate" {
			size = " --" + name + "-bytes 8m"
		}
		list = append(list, suite{"stress-ng " + name, []string{"stress-ng"}, false, nil,
			fmt.Sprintf("stress-ng --%s 1%s --timeout 1s --temp-path \"$PWD\" 2>&1", name, size)})
	}
	return list
}
