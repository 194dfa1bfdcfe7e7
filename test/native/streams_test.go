package native

import (
	"bytes"
	"crypto/md5"
	"encoding/hex"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/testutil"
)

// noise is n random bytes, the same for the same seed.
func noise(n int, seed byte) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{seed}).Read(b)
	return b
}

func sum(b []byte) string {
	h := md5.Sum(b)
	return hex.EncodeToString(h[:])
}

// TestStreamsExact sends 10 MB through each of the three streams at once.
func TestStreamsExact(t *testing.T) {
	testutil.Long(t)
	dir, m := workspace(t, 0, 0)
	const size = 10_000_000
	in, out, errs := noise(size, 1), noise(size, 2), noise(size, 3)
	for name, content := range map[string][]byte{"out": out, "err": errs} {
		if err := os.WriteFile(dir+"/"+name, content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	spec := engine.Spec{}
	spec.Mounts = append(spec.Mounts, m)
	b := newBox(t, spec)
	var stdout, stderr bytes.Buffer
	c := shell("cat out & cat err >&2 & md5sum > sum; wait")
	c.Stdin, c.Stdout, c.Stderr = bytes.NewReader(in), &stdout, &stderr
	o := run(t, b, c)
	want(t, o, engine.Exited, 0)
	if sum(stdout.Bytes()) != sum(out) || sum(stderr.Bytes()) != sum(errs) {
		t.Errorf("%d bytes of stdout, %d of stderr came, or not as they were sent", stdout.Len(), stderr.Len())
	}
	got, err := os.ReadFile(dir + "/sum")
	if err != nil || !strings.HasPrefix(string(got), sum(in)) {
		t.Errorf("stdin arrived as %q, %v, want %s", got, err, sum(in))
	}
	if n := figure(t, "stdout", o.Receipt.StdoutBytes); n != size {
		t.Errorf("receipt: %d bytes of stdout", n)
	}
}

func TestStdin(t *testing.T) {
	testutil.Long(t)
	b := newBox(t, engine.Spec{})
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
		t.Run(c.name, func(t *testing.T) {
			cmd := shell(c.script)
			cmd.Stdin = c.stdin
			o := run(t, b, cmd)
			want(t, o, engine.Exited, 0)
			if o.stdout != c.want {
				t.Errorf("%q, want %q", o.stdout, c.want)
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

// TestStdinNeverComes: a reader that blocks for ever does not hold up the end of
// a command that does not wait for it.
func TestStdinNeverComes(t *testing.T) {
	testutil.Long(t)
	b := newBox(t, engine.Spec{})
	r, w := io.Pipe()
	defer w.Close()
	c := shell("echo done")
	c.Stdin = r
	if o := run(t, b, c); o.stdout != "done\n" {
		t.Errorf("%q", o.stdout)
	}
}

// TestOutputToFile: one file for both streams is one stream to the command, in the
// order in which it was written; the box does not get the file itself.
func TestOutputToFile(t *testing.T) {
	testutil.Long(t)
	b := newBox(t, engine.Spec{})
	path := t.TempDir() + "/out"
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	c := shell("for i in 1 2 3; do echo out $i; echo err $i >&2; done; test -p /proc/self/fd/1 && echo pipe")
	c.Stdout, c.Stderr = file, file
	o := run(t, b, c)
	want(t, o, engine.Exited, 0)
	const text = "out 1\nerr 1\nout 2\nerr 2\nout 3\nerr 3\npipe\n"
	got, err := os.ReadFile(path)
	if err != nil || string(got) != text {
		t.Errorf("%q, %v, want %q", got, err, text)
	}
	if n := figure(t, "stdout", o.Receipt.StdoutBytes); n != int64(len(text)) {
		t.Errorf("receipt: %d bytes, want %d", n, len(text))
	}
}

// TestOutputToPipe: the command gets the caller's own pipe, and its output is not counted.
func TestOutputToPipe(t *testing.T) {
	testutil.Long(t)
	b := newBox(t, engine.Spec{})
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	c := shell("echo out")
	c.Stdout = write
	o := run(t, b, c)
	want(t, o, engine.Exited, 0)
	write.Close()
	if got, err := io.ReadAll(read); err != nil || string(got) != "out\n" {
		t.Errorf("%q, %v", got, err)
	}
	if o.Receipt.StdoutBytes != nil {
		t.Errorf("%d bytes that did not pass through boxd were counted", *o.Receipt.StdoutBytes)
	}
}

// TestStreamsArrive: output comes when it is written, not at the end.
func TestStreamsArrive(t *testing.T) {
	testutil.Long(t)
	b := newBox(t, engine.Spec{})
	in, feed := io.Pipe()
	out := newScreen()
	c := shell(`while read x; do echo "got $x"; done; echo end`)
	c.Stdin, c.Stdout = in, out
	p := begin(t, b, c)
	for _, word := range []string{"one", "two", "three"} {
		if _, err := io.WriteString(feed, word+"\n"); err != nil {
			t.Fatal(err)
		}
		out.await(t, "got "+word+"\n")
	}
	feed.Close()
	out.await(t, "end\n")
	if r := wait(t, p); r.Verdict != engine.Exited {
		t.Error(r)
	}
}

// TestWriterFails: if a writer of the caller fails, the command ends as if its reader had left, and the caller gets the
// error.
func TestWriterFails(t *testing.T) {
	testutil.Long(t)
	b := newBox(t, engine.Spec{})
	full := errors.New("disk is full")
	p := begin(t, b, engine.Command{Args: []string{"cat", "/dev/zero"}, Stdout: brokenWriter{full}})
	r, err := p.Wait()
	if !errors.Is(err, full) || r.Signal != 13 {
		t.Errorf("%+v, %v, want SIGPIPE and the writer's error", r, err)
	}
}

type brokenWriter struct{ err error }

func (w brokenWriter) Write([]byte) (int, error) { return 0, w.err }

// TestSlowWriter: a command is held up by its reader, not cut off.
func TestSlowWriter(t *testing.T) {
	testutil.Long(t)
	b := newBox(t, engine.Spec{})
	w := &slowWriter{}
	c := shell("head -c 1000000 /dev/zero")
	c.Stdout = w
	o := run(t, b, c)
	want(t, o, engine.Exited, 0)
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

// screen is a writer whose content can be awaited.
type screen struct {
	mu    sync.Mutex
	text  bytes.Buffer
	wrote chan struct{}
}

func newScreen() *screen { return &screen{wrote: make(chan struct{}, 1)} }

func (s *screen) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text.Write(b)
	select {
	case s.wrote <- struct{}{}:
	default:
	}
	return len(b), nil
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// await returns when text has been written, and forgets what came before its end.
func (s *screen) await(t testing.TB, text string) {
	t.Helper()
	timeout := time.After(patience)
	for {
		s.mu.Lock()
		i := strings.Index(s.text.String(), text)
		if i >= 0 {
			s.text.Next(i + len(text))
		}
		s.mu.Unlock()
		if i >= 0 {
			return
		}
		select {
		case <-s.wrote:
		case <-timeout:
			t.Fatalf("%q did not come in %v; there is %q", text, patience, tail(s.String()))
		}
	}
}
