package conformance

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/boxtest"
)

// streamsExact sends 10 MB through each of the three streams at once.
func (e *suite) streamsExact(t testing.TB) {
	dir, m := boxtest.Workspace(t, 0, 0)
	const size = 10_000_000
	in, out, errs := boxtest.Noise(size, 1), boxtest.Noise(size, 2), boxtest.Noise(size, 3)
	for name, content := range map[string][]byte{"out": out, "err": errs} {
		if err := os.WriteFile(dir+"/"+name, content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	spec := engine.Spec{}
	spec.Mounts = append(spec.Mounts, m)
	b := e.create(t, spec)
	var stdout, stderr bytes.Buffer
	c := boxtest.Shell("cat out & cat err >&2 & md5sum > sum; wait")
	c.Stdin, c.Stdout, c.Stderr = bytes.NewReader(in), &stdout, &stderr
	o := boxtest.Run(t, b, c)
	boxtest.Want(t, o, engine.Exited, 0)
	if boxtest.Sum(stdout.Bytes()) != boxtest.Sum(out) || boxtest.Sum(stderr.Bytes()) != boxtest.Sum(errs) {
		t.Errorf("%d bytes of stdout, %d of stderr came, or not as they were sent", stdout.Len(), stderr.Len())
	}
	got, err := os.ReadFile(dir + "/sum")
	if err != nil || !strings.HasPrefix(string(got), boxtest.Sum(in)) {
		t.Errorf("stdin arrived as %q, %v, want %s", got, err, boxtest.Sum(in))
	}
	if n := boxtest.Figure(t, "stdout", o.Receipt.StdoutBytes); n != size {
		t.Errorf("receipt: %d bytes of stdout", n)
	}
}

// wholeWrite: as pipe(7) promises, a write waits until all of it was written. Programs that call write(2) once lose
// the rest otherwise.
func (e *suite) wholeWrite(t testing.TB) {
	b := e.create(t, engine.Spec{})
	o := boxtest.Run(t, b, boxtest.Python("import os; os.write(2, str(os.write(1, b'x' * 1000000)).encode())"))
	if o.Stderr != "1000000" || len(o.Stdout) != 1000000 {
		t.Errorf("one write of 1000000 bytes returned %q, and %d bytes arrived", o.Stderr, len(o.Stdout))
	}
}

func (e *suite) stdin(t testing.TB) {
	b := e.create(t, engine.Spec{})
	file, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.WriteString("of a file"); err != nil {
		t.Fatal(err)
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	go func() {
		defer write.Close()
		io.WriteString(write, "of a pipe")
	}()
	for _, c := range []struct {
		name   string
		stdin  io.Reader
		script string
		want   string
	}{
		{"none is /dev/null", nil, "readlink /proc/self/fd/0; cat", "/dev/null\n"},
		{"empty", strings.NewReader(""), "cat", ""},
		{"bytes", strings.NewReader("a\x00b"), "cat", "a\x00b"},
		{"lines, one process each", strings.NewReader("a\nb\n"), "read a; echo $a; cat", "a\nb\n"},
		{"file", file, "cat", "of a file"},
		{"pipe", read, "cat", "of a pipe"},
		{"read in pieces", &pieces{"x", "yy", "zzz"}, "cat", "xyyzzz"},
		{"not read, endless", endless{}, "echo done", "done\n"},
		{"read a little of, endless", endless{}, "head -c 3 | tr '\\0' x", "xxx"},
		{"closed early, endless", endless{}, "exec <&-; echo done", "done\n"},
		{"a reader that fails", failing{}, "cat; echo end", "end\n"},
	} {
		sub(t, c.name, func(t testing.TB) {
			cmd := boxtest.Shell(c.script)
			cmd.Stdin = c.stdin
			o := boxtest.Run(t, b, cmd)
			boxtest.Want(t, o, engine.Exited, 0)
			if o.Stdout != c.want {
				t.Errorf("%q, want %q", o.Stdout, c.want)
			}
		})
	}
}

// pieces are Reads of their own.
type pieces []string

func (p *pieces) Read(b []byte) (int, error) {
	if len(*p) == 0 {
		return 0, io.EOF
	}
	n := copy(b, (*p)[0])
	*p = (*p)[1:]
	return n, nil
}

type endless struct{}

func (endless) Read(b []byte) (int, error) { clear(b); return len(b), nil }

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("reader broke") }

// stdinNeverComes: a reader that blocks for ever does not hold up the end of
// a command that does not wait for it.
func (e *suite) stdinNeverComes(t testing.TB) {
	b := e.create(t, engine.Spec{})
	r, w := io.Pipe()
	defer w.Close()
	c := boxtest.Shell("echo done")
	c.Stdin = r
	if o := boxtest.Run(t, b, c); o.Stdout != "done\n" {
		t.Errorf("%q", o.Stdout)
	}
}

// outputToFile: one file for both streams is one stream to the command, in the
// order in which it was written; the box does not get the file itself.
func (e *suite) outputToFile(t testing.TB) {
	b := e.create(t, engine.Spec{})
	path := t.TempDir() + "/out"
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	c := boxtest.Shell("for i in 1 2 3; do echo out $i; echo err $i >&2; done; test -p /proc/self/fd/1 && echo pipe")
	c.Stdout, c.Stderr = file, file
	o := boxtest.Run(t, b, c)
	boxtest.Want(t, o, engine.Exited, 0)
	const text = "out 1\nerr 1\nout 2\nerr 2\nout 3\nerr 3\npipe\n"
	got, err := os.ReadFile(path)
	if err != nil || string(got) != text {
		t.Errorf("%q, %v, want %q", got, err, text)
	}
	if n := boxtest.Figure(t, "stdout", o.Receipt.StdoutBytes); n != int64(len(text)) {
		t.Errorf("receipt: %d bytes, want %d", n, len(text))
	}
}

// outputToPipe: the command gets the caller's own pipe, and its output is not counted.
func (e *suite) outputToPipe(t testing.TB) {
	b := e.create(t, engine.Spec{})
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	c := boxtest.Shell("echo out")
	c.Stdout = write
	o := boxtest.Run(t, b, c)
	boxtest.Want(t, o, engine.Exited, 0)
	write.Close()
	if got, err := io.ReadAll(read); err != nil || string(got) != "out\n" {
		t.Errorf("%q, %v", got, err)
	}
	if o.Receipt.StdoutBytes != nil {
		t.Errorf("%d bytes that did not pass through boxd were counted", *o.Receipt.StdoutBytes)
	}
}

// streamsArrive: output comes when it is written, not at the end.
func (e *suite) streamsArrive(t testing.TB) {
	b := e.create(t, engine.Spec{})
	in, feed := io.Pipe()
	out := boxtest.NewScreen()
	c := boxtest.Shell(`while read x; do echo "got $x"; done; echo end`)
	c.Stdin, c.Stdout = in, out
	p := boxtest.Begin(t, b, c)
	for _, word := range []string{"one", "two", "three"} {
		if _, err := io.WriteString(feed, word+"\n"); err != nil {
			t.Fatal(err)
		}
		out.Await(t, "got "+word+"\n")
	}
	feed.Close()
	out.Await(t, "end\n")
	if r := boxtest.Wait(t, p); r.Verdict != engine.Exited {
		t.Error(r)
	}
}

// writerFails: if a writer of the caller fails, the command ends as if its reader had left, and the caller gets the
// error.
func (e *suite) writerFails(t testing.TB) {
	b := e.create(t, engine.Spec{})
	full := errors.New("disk is full")
	p := boxtest.Begin(t, b, engine.Command{Args: []string{"cat", "/dev/zero"}, Stdout: brokenWriter{full}})
	r, err := p.Wait()
	if !errors.Is(err, full) || r.Signal != 13 {
		t.Errorf("%+v, %v, want SIGPIPE and the writer's error", r, err)
	}
}

type brokenWriter struct{ err error }

func (w brokenWriter) Write([]byte) (int, error) { return 0, w.err }

// slowWriter: a command is held up by its reader, not cut off.
func (e *suite) slowWriter(t testing.TB) {
	b := e.create(t, engine.Spec{})
	w := &slowWriter{}
	c := boxtest.Shell("head -c 1000000 /dev/zero")
	c.Stdout = w
	o := boxtest.Run(t, b, c)
	boxtest.Want(t, o, engine.Exited, 0)
	if w.n != 1_000_000 {
		t.Errorf("%d bytes", w.n)
	}
}

type slowWriter struct{ n int }

func (w *slowWriter) Write(b []byte) (int, error) {
	time.Sleep(time.Millisecond) // the slowness itself, nothing is awaited
	w.n += len(b)
	return len(b), nil
}
