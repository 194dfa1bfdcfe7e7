package files

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/boxd/boxd/agent/files/proto"
	"github.com/boxd/boxd/engine"
)

// box answers each command with its fields, as an engine would pass them on.
type box struct {
	engine.Box     // nil: nothing else is to be called
	stdout, stderr string
	result         engine.Result
	err            error // of Start

	cmd   engine.Command
	stdin bytes.Buffer
}

func (b *box) Start(_ context.Context, cmd engine.Command) (engine.Process, error) {
	if err := cmd.Validate(); err != nil {
		return nil, err
	}
	b.cmd = cmd
	if b.err != nil {
		return nil, b.err
	}
	return &process{b: b}, nil
}

type process struct {
	engine.Process
	b *box
}

// Wait copies as the engine does: it returns the error of the caller's writer.
func (p *process) Wait() (engine.Result, error) {
	if p.b.cmd.Stdin != nil {
		_, _ = io.Copy(&p.b.stdin, p.b.cmd.Stdin)
	}
	_, err := io.Copy(p.b.cmd.Stdout, strings.NewReader(p.b.stdout))
	_, e := io.Copy(p.b.cmd.Stderr, strings.NewReader(p.b.stderr))
	return p.b.result, errors.Join(err, e)
}

// exited is a command that ended with a status.
func exited(status int) engine.Result { return engine.Result{Verdict: engine.Exited, ExitCode: status} }

const fileInfo = `{"info":{"size":3,"mode":33188,"sec":1000000000,"uid":7,"gid":8}}`

func TestRequests(t *testing.T) {
	ctx, user := t.Context(), &engine.User{UID: 5, GID: 6}
	o := Options{User: user, Timeout: time.Minute}
	for _, c := range []struct {
		name string
		do   func(b *box) error
		args string
		dir  string
	}{
		{"read", func(b *box) error { _, err := Read(ctx, b, o, "a/b", 5, 0, io.Discard); return err }, "read a/b 5 67108864", ""},
		{"read part", func(b *box) error { _, err := Read(ctx, b, o, "/a", 0, 9, io.Discard); return err }, "read /a 0 9", "/"},
		{"stat", func(b *box) error { _, err := Stat(ctx, b, o, "/a"); return err }, "stat /a", "/"},
		{"list", func(b *box) error { _, _, err := List(ctx, b, o, "a", 0); return err }, "list a 1000", ""},
		{"remove", func(b *box) error { return Remove(ctx, b, o, "a", false) }, "remove a -", ""},
		{"remove all", func(b *box) error { return Remove(ctx, b, o, "a", true) }, "remove a recursive", ""},
		{"mkdir", func(b *box) error { return Mkdir(ctx, b, o, "a", MkdirOptions{Parents: true}) }, "mkdir a 0 parents", ""},
		{"mkdir mode", func(b *box) error { return Mkdir(ctx, b, o, "/a", MkdirOptions{Mode: 0o700}) }, "mkdir /a 700 -", "/"},
		{"symlink", func(b *box) error { return Symlink(ctx, b, o, "/a", "../b c") }, "symlink /a ../b c", "/"},
		{"write", func(b *box) error {
			_, err := Write(ctx, b, o, "a", strings.NewReader("abc"), WriteOptions{Mode: 0o640, MakeParents: true})
			return err
		}, "write a 640 replace parents", ""},
		{"append", func(b *box) error {
			_, err := Write(ctx, b, o, "a", strings.NewReader("abc"), WriteOptions{Append: true})
			return err
		}, "write a 0 append -", ""},
	} {
		b := &box{stderr: fileInfo, result: exited(0)}
		if err := c.do(b); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if got := strings.Join(b.cmd.Args, " "); got != c.args || b.cmd.Builtin != "files" || b.cmd.User != user || b.cmd.Timeout != time.Minute || b.cmd.Dir != c.dir {
			t.Errorf("%s: %q of %+v, want %q", c.name, got, b.cmd, c.args)
		}
		if strings.HasPrefix(c.args, "write") && b.stdin.String() != "\x00\x00\x00\x03abc\x00\x00\x00\x00" {
			t.Errorf("%s: content %q", c.name, b.stdin.String())
		}
	}
}

func TestRefusedBeforehand(t *testing.T) {
	ctx := t.Context()
	for name, err := range map[string]error{
		"empty":               Remove(ctx, &box{}, Options{}, "", false),
		"NUL":                 Mkdir(ctx, &box{}, Options{}, "a\x00", MkdirOptions{}),
		"mode of a directory": Mkdir(ctx, &box{}, Options{}, "a", MkdirOptions{Mode: 0o1000}),
		"no target":           Symlink(ctx, &box{}, Options{}, "a", ""),
		"NUL in a target":     Symlink(ctx, &box{}, Options{}, "a", "b\x00"),
		"long":                Mkdir(ctx, &box{}, Options{}, strings.Repeat("a/", 2048), MkdirOptions{}),
		"long name":           Mkdir(ctx, &box{}, Options{}, "a/"+strings.Repeat("b", 256), MkdirOptions{}),
		"negative offset":     second(Read(ctx, &box{}, Options{}, "a", -1, 0, io.Discard)),
		"negative limit":      second(Read(ctx, &box{}, Options{}, "a", 0, -1, io.Discard)),
		"negative bytes":      second(Write(ctx, &box{}, Options{}, "a", nil, WriteOptions{MaxBytes: -1})),
		"mode":                second(Write(ctx, &box{}, Options{}, "a", nil, WriteOptions{Mode: 0o4755})),
		"user":                second(Stat(ctx, &box{}, Options{User: &engine.User{UID: -1}}, "a")),
		"timeout":             second(Stat(ctx, &box{}, Options{Timeout: -1}, "a")),
	} {
		if !errors.Is(err, engine.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// TestAnswers: whatever the box answers, the caller gets a fitting error.
func TestAnswers(t *testing.T) {
	verdict := func(v engine.Verdict) engine.Result {
		return engine.Result{Verdict: v, ExitCode: -1, Signal: syscall.SIGKILL, Limit: "64"}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("went away")
	cancel(cause)
	for _, c := range []struct {
		name   string
		stderr string
		result engine.Result
		start  error
		want   error
		text   string
	}{
		{"not found", `{"failure":{"errno":2}}`, exited(1), nil, fs.ErrNotExist, `describing "a": no such file or directory`},
		{"failure and success", `{"failure":{"errno":2}}`, exited(0), nil, fs.ErrNotExist, ""},
		{"below", `{"failure":{"errno":13,"step":"opening\u001b\n","path":"YQo="}}`, exited(1), nil, fs.ErrPermission, `describing "a": opening?? "a\n": permission denied`},
		{"FIFO", `{"failure":{"errno":22,"type":4096}}`, exited(1), nil, ErrNotRegular, `not a regular file but a fifo`},
		{"odd type", `{"failure":{"errno":22,"type":1}}`, exited(1), nil, ErrNotRegular, ""},
		{"full", `{"failure":{"errno":28}}`, engine.Result{Verdict: engine.DiskQuota, ExitCode: 1, Limit: "/tmp 64 MiB"}, nil, syscall.ENOSPC, "limit /tmp 64 MiB"},
		{"no words", "", exited(0), nil, ErrProtocol, "exited, status 0"},
		{"foreign words", "hello\n\x1b[2J", exited(0), nil, ErrProtocol, ""},
		{"success that failed", fileInfo, exited(3), nil, ErrProtocol, "exited, status 3"},
		{"no file described", "{}", exited(0), nil, ErrProtocol, "describes no file"},
		{"bad type", `{"info":{"mode":1}}`, exited(0), nil, ErrProtocol, ""},
		{"bad size", `{"info":{"mode":33188,"size":-1}}`, exited(0), nil, ErrProtocol, ""},
		{"bad target", `{"info":{"mode":33188,"target":"AA=="}}`, exited(0), nil, ErrProtocol, ""},
		{"too many words", strings.Repeat(" ", proto.MaxReply+1), exited(0), nil, ErrProtocol, ""},
		{"killed", fileInfo, verdict(engine.Signaled), nil, ErrProtocol, "signaled by killed"},
		{"timeout", fileInfo, verdict(engine.TimedOut), nil, ErrTimeout, "timed out after 30s"},
		{"canceled", fileInfo, verdict(engine.Canceled), nil, cause, ""},
		{"lost", fileInfo, verdict(engine.BoxLost), nil, engine.ErrBoxLost, ""},
		{"memory", "", verdict(engine.OOM), nil, syscall.ENOMEM, "memory limit of 64"},
		{"processes", "", verdict(engine.PIDsLimit), nil, syscall.EAGAIN, "pids limit"},
		{"threads", "runtime: failed to create new OS thread (have 2 already; errno=11)\nfatal error", exited(2), nil, syscall.EAGAIN, "pids limit"},
		{"not started", "", exited(0), engine.ErrBoxLost, engine.ErrBoxLost, ""},
	} {
		_, err := Stat(ctx, &box{stderr: c.stderr, result: c.result, err: c.start}, Options{}, "a")
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) || !strings.Contains(err.Error(), `"a"`) {
			t.Errorf("%s: %v, want %v with %q", c.name, err, c.want, c.text)
			continue
		}
		if strings.ContainsAny(err.Error(), "\n\x1b") {
			t.Errorf("%s: %q is not one clear line", c.name, err)
		}
	}
}

func TestReadIsBounded(t *testing.T) {
	for _, c := range []struct {
		stdout string
		want   error
	}{{"", nil}, {"ab", nil}, {"abc", nil}, {"abcd", ErrProtocol}, {strings.Repeat("x", 1<<20), ErrProtocol}} {
		var out strings.Builder
		_, err := Read(t.Context(), &box{stdout: c.stdout, stderr: fileInfo, result: exited(0)}, Options{}, "a", 0, 3, &out)
		if !errors.Is(err, c.want) || out.Len() > 3 {
			t.Errorf("%.10q: read %q, %v, want %v", c.stdout, out.String(), err, c.want)
		}
	}
	full := errors.New("caller is full")
	_, err := Read(t.Context(), &box{stdout: "abc", stderr: fileInfo, result: exited(0)}, Options{}, "a", 0, 3, failing{full})
	if !errors.Is(err, full) {
		t.Errorf("%v, want %v", err, full)
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

func TestListing(t *testing.T) {
	entry := func(name string) string { // base64 of one letter is "YQ=="
		return `{"name":"` + name + `","mode":33188,"size":1}` + "\n"
	}
	a, b := entry("YQ=="), entry("Yg==")
	list, more, err := List(t.Context(), &box{stdout: b + a, stderr: `{"truncated":true}`, result: exited(0)}, Options{}, "/d/", 2)
	if err != nil || !more || len(list) != 2 || list[0].Name != "a" || list[0].Path != "/d/a" || list[1].Path != "/d/b" {
		t.Errorf("%+v, %v, %v", list, more, err)
	}
	if list, _, err := List(t.Context(), &box{stdout: a, stderr: "{}", result: exited(0)}, Options{}, "/", 2); err != nil || list[0].Path != "/a" {
		t.Errorf("%+v, %v", list, err)
	}
	for name, out := range map[string]string{
		"too many": a + b + a, "no name": "{\"mode\":33188}\n", "dot": entry("Lg=="), "dots": entry("Li4="), "slash": entry("YS9i"),
		"NUL": entry("AA=="), "long": entry(strings.Repeat("YWFh", 86)), "rubbish": "x\n", "half": a[:20],
	} {
		list, _, err := List(t.Context(), &box{stdout: out, stderr: "{}", result: exited(0)}, Options{}, "/", 2)
		if !errors.Is(err, ErrProtocol) || list != nil {
			t.Errorf("%s: %+v, %v, want ErrProtocol", name, list, err)
		}
	}
	for _, most := range []int{-1, MaxEntries + 1} {
		if _, _, err := List(t.Context(), &box{}, Options{}, "/", most); !errors.Is(err, engine.ErrInvalid) {
			t.Errorf("%d: %v, want ErrInvalid", most, err)
		}
	}
}

// TestOddTimes: a file may have a time that no calendar has.
func TestOddTimes(t *testing.T) {
	for _, sec := range []int64{-1 << 63, -1, 0, 1 << 40, 1<<63 - 1} {
		i, err := describe(proto.Info{Mode: syscall.S_IFREG, Sec: sec, Nsec: sec}, "a", "a")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := i.ModTime.MarshalJSON(); err != nil {
			t.Errorf("%d: %v", sec, err)
		}
	}
}

// TestContent: content that fails gets no final chunk.
func TestContent(t *testing.T) {
	boom := errors.New("boom")
	for _, c := range []struct {
		name string
		r    io.Reader
		most int64
		sent string
		want error
	}{
		{"exact", strings.NewReader("abc"), 3, "\x00\x00\x00\x03abc\x00\x00\x00\x00", nil},
		{"empty", strings.NewReader(""), 3, "\x00\x00\x00\x00", nil},
		{"data with EOF", iotest.DataErrReader(strings.NewReader("ab")), 3, "\x00\x00\x00\x02ab\x00\x00\x00\x00", nil},
		{"bytes", iotest.OneByteReader(strings.NewReader("ab")), 3, "\x00\x00\x00\x01a\x00\x00\x00\x01b\x00\x00\x00\x00", nil},
		{"too large", strings.NewReader("abcd"), 3, "", ErrTooLarge},
		{"too large later", iotest.OneByteReader(strings.NewReader("abc")), 2, "\x00\x00\x00\x01a\x00\x00\x00\x01b", ErrTooLarge},
		{"failing", io.MultiReader(strings.NewReader("a"), iotest.ErrReader(boom)), 3, "\x00\x00\x00\x01a", boom},
		{"none", strings.NewReader("a"), 0, "", ErrTooLarge},
	} {
		s, sent := &source{r: c.r, left: c.most}, new(bytes.Buffer)
		_, err := io.Copy(sent, s)
		if sent.String() != c.sent || !errors.Is(s.failure(), c.want) || !errors.Is(err, c.want) {
			t.Errorf("%s: sent %q, %v, %v, want %q, %v", c.name, sent.String(), err, s.failure(), c.sent, c.want)
		}
	}
	if err := second(Write(t.Context(), &box{stderr: fileInfo, result: exited(0)}, Options{}, "a", iotest.ErrReader(boom), WriteOptions{})); !errors.Is(err, boom) {
		t.Errorf("%v, want %v, whatever the box says", err, boom)
	}
	// A failure of the other side is not one of the content.
	s := &source{r: strings.NewReader("abc"), left: 3}
	if _, err := s.WriteTo(failing{syscall.EPIPE}); !errors.Is(err, syscall.EPIPE) || s.failure() != nil {
		t.Errorf("%v, %v", err, s.failure())
	}
}

// TestLateContent: content that arrives after the end of the operation does no harm.
func TestLateContent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		s := &source{r: r, left: 9}
		go func() { _, _ = s.WriteTo(io.Discard) }()
		synctest.Wait()
		if err := s.failure(); err != nil {
			t.Error(err)
		}
		w.CloseWithError(io.ErrClosedPipe)
		synctest.Wait()
		if err := s.failure(); !errors.Is(err, io.ErrClosedPipe) {
			t.Error(err)
		}
	})
}

// FuzzAnswer feeds arbitrary answers of a box. Every operation ends with a value or an error,
// and error texts are bounded.
func FuzzAnswer(f *testing.F) {
	f.Add("abc", fileInfo, byte(0))
	f.Add(`{"name":"YQ==","mode":33188,"size":1}`+"\n", `{"truncated":true}`, byte(0))
	f.Add("", `{"failure":{"errno":2,"step":"opening","path":"YQ=="}}`, byte(1))
	f.Add("", "runtime: failed to create new OS thread", byte(2))
	f.Fuzz(func(t *testing.T, stdout, stderr string, status byte) {
		b := &box{stdout: stdout, stderr: stderr, result: exited(int(status))}
		var out strings.Builder
		_, err := Read(t.Context(), b, Options{}, "a", 0, 10, &out)
		if out.Len() > 10 {
			t.Errorf("read %d bytes", out.Len())
		}
		list, _, e := List(t.Context(), b, Options{}, "a", 5)
		for _, i := range list {
			if len(list) > 5 || i.Name == "" || len(i.Name) > 255 || strings.Contains(i.Name, "/") || i.Size < 0 {
				t.Errorf("listed %+v", list)
			}
		}
		for _, err := range []error{err, e} {
			if err != nil && (len(err.Error()) > 2000 || strings.ContainsAny(err.Error(), "\n\x00\x1b")) {
				t.Errorf("%q is not one clear line", err)
			}
		}
	})
}
