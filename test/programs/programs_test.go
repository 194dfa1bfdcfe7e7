package programs

import (
	"embed"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/testutil"
	"github.com/boxd/boxd/test/boxes"
)

// scripts are shell scripts, each the proof that one program works. They run in a box as
// user 1000 in an empty directory and print what the table wants, and nothing else.
//
//go:embed testdata
var scripts embed.FS

// programs has for each script the programs of the host that it needs, its expected output, and what it does that boxd
// refuses, bounds or pretends to do.
var programs = []struct {
	script string
	needs  []string
	want   string
	why    string
}{
	{"file", []string{"file"}, "greeting: gzip compressed data\n", "some builds load a seccomp filter"},
	{"man", []string{"man"}, "HELLO(1)\nhello - greets\n", "loads a seccomp filter around groff"},
	{"gpg", []string{"gpg", "gpg-agent"}, "[GNUPG:] GOODSIG box <box@box.test>\ndecrypted\n", "sets RLIMIT_CORE and aborts if that fails; locks memory"},
	{"ssh-agent", []string{"ssh-agent", "ssh-add", "ssh-keygen"}, "256 box (ED25519)\n", "sets RLIMIT_CORE and ends if that fails"},
	{"ssh", []string{"ssh", "scp", "ssh-keygen", "dropbear", "dropbearkey"}, "hello from a session\ncopied\n", "sets RLIMIT_CORE, socket options and time stamps"},
	{"chromium", []string{"chromium"}, "<html><head><title>box</title></head><body>3 paragraphs</body></html>\n", "netlink, shared memory, seccomp filters, many processes"},
	{"dns", []string{"dig", "getent", "python3", "musl-gcc"}, `dig 192.0.2.7
dig over tcp 192.0.2.7
glibc 192.0.2.7
glibc 2001:db8::7
python [('192.0.2.7', 80), ('2001:db8::7', 80, 0, 0)]
musl 192.0.2.7
musl 2001:db8::7
lo [127.0.0.1/8 ::1/128]
[192.0.2.7 2001:db8::7]
`, "resolvers set IP_RECVERR and time stamps, and list interfaces over netlink"},
	{"interfaces", []string{"ip", "python3", "node", "java", "javac"}, `ip lo 127.0.0.1/8
ip lo ::1/128
python [(1, 'lo')]
node {"lo":["127.0.0.1","::1"]}
java lo 0:0:0:0:0:0:0:1%lo 127.0.0.1
`, "netlink sockets are counted"},
	{"copy", []string{"python3"}, "640\n640\n640\nhello\n", "sets extended attributes where there are any"},
	{"core", []string{"python3"}, "shell\npython\n", "sets RLIMIT_CORE"},
	{"postgresql", []string{"psql", "initdb", "postgres", "pg_ctl"}, "1000 rows, 500500\n", "shared memory, semaphores, locks"},
	{"mariadb", []string{"mariadbd", "mariadb-install-db", "mariadb"}, "1000\t500500\n", "io_setup or io_uring for InnoDB"},
	{"sqlite", []string{"python3"}, "wal\n1000 500500\nok\n", "byte-range locks"},
	{"redis", []string{"redis-check-rdb", "redis-cli"}, "OK\nhello\n1000\nOK\nhello\n", "a large accept queue, background processes"},
	{"nginx", []string{"nginx", "python3"}, "200 hello 300000\n", "a large accept queue, MSG_MORE, sendfile"},
	{"node", []string{"node"}, "client got 1000000 bytes, worker got 42\n", "threads, io_uring, socket options"},
	{"java", []string{"java", "javac"}, "client got 1000000 bytes, 8 threads\n", "large pages, time stamps"},
}

func TestPrograms(t *testing.T) {
	testutil.RequireRoot(t)
	e := boxes.Start(t)
	// PostgreSQL's server is beside PATH in Debian. The user's own programs are not in the image.
	path := []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin"}
	servers, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", strings.Join(append(path, servers...), ":"))
	tools, self := t.TempDir(), testutil.CopyOfSelf(t, "go")
	if err := os.CopyFS(tools, scripts); err != nil {
		t.Fatal(err)
	}
	for _, p := range programs {
		t.Run(p.script, func(t *testing.T) {
			t.Parallel()
			for _, program := range p.needs {
				testutil.RequireProgram(t, program)
			}
			b, remove := boxes.Create(t, e, engine.Spec{
				User:    engine.User{UID: 1000, GID: 1000},
				TmpSize: 512 << 20,
				Limits:  engine.Limits{Memory: 1 << 30, PIDs: 256},
				Mounts: []engine.Mount{
					{Source: filepath.Join(tools, "testdata"), Target: "/opt/scripts", ReadOnly: true},
					{Source: self, Target: "/opt/self", ReadOnly: true},
				},
			})
			defer remove()
			var stdout, stderr strings.Builder
			result, err := engine.Run(t.Context(), b, engine.Command{
				Args:    []string{"sh", "-eu", "/opt/scripts/" + p.script + ".sh"},
				Env:     []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C.UTF-8", goRole + "=1"},
				Stdout:  &stdout,
				Stderr:  &stderr,
				Dir:     "/tmp/work",
				MakeDir: true,
				Timeout: 3 * time.Minute, // a hang gets a name; it decides nothing else
			})
			if err != nil {
				t.Fatal(err)
			}
			if result.Verdict != engine.Exited || result.ExitCode != 0 || stdout.String() != p.want {
				t.Errorf("%s, status %d\ngot  %q\nwant %q\nit may be hit by a change of policy: %s\nstderr: %s",
					result.Verdict, result.ExitCode, tail(stdout.String()), p.want, p.why, tail(stderr.String()))
			}
		})
	}
}
