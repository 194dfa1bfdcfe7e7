package native

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native"
	"github.com/boxd/boxd/files"
	"github.com/boxd/boxd/internal/testutil"
)

// asUser are the options of tests that do not care.
var asUser = files.Options{}

func readFile(t testing.TB, b engine.Box, o files.Options, path string) (string, error) {
	t.Helper()
	var out strings.Builder
	_, err := files.Read(t.Context(), b, o, path, 0, 0, &out)
	return out.String(), err
}

func writeFile(t testing.TB, b engine.Box, path, content string) {
	t.Helper()
	if _, err := files.Write(t.Context(), b, asUser, path, strings.NewReader(content), files.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
}

func wantContent(t testing.TB, b engine.Box, path, content string) {
	t.Helper()
	if got, err := readFile(t, b, asUser, path); err != nil || got != content {
		t.Errorf("%q holds %q, %v, want %q", path, tail(got), err, content)
	}
}

// wantError checks that err is what, in one line that names the path.
func wantError(t testing.TB, name string, err, what error) {
	t.Helper()
	if !errors.Is(err, what) {
		t.Errorf("%s: %v, want %v", name, err, what)
		return
	}
	if line := err.Error(); strings.ContainsAny(line, "\n\x00") || len(line) > 600 {
		t.Errorf("%s: %q is not one clear line", name, line)
	}
}

// TestFiles: every operation, as root of the box and as another user.
func TestFiles(t *testing.T) {
	testutil.Long(t)
	e := start(t)
	for _, user := range []engine.User{{}, {UID: 1000, GID: 1000}} {
		t.Run(fmt.Sprint(user.UID), func(t *testing.T) {
			b := create(t, e, engine.Spec{User: user})
			ctx := t.Context()
			if err := files.Mkdir(ctx, b, asUser, "a/b", files.MkdirOptions{Parents: true}); err != nil {
				t.Fatal(err)
			}
			wantError(t, "mkdir twice", files.Mkdir(ctx, b, asUser, "a/b", files.MkdirOptions{}), fs.ErrExist)
			if err := files.Mkdir(ctx, b, asUser, "a/b/", files.MkdirOptions{Parents: true}); err != nil {
				t.Error(err)
			}
			info, err := files.Write(ctx, b, asUser, "a/b/c/file", strings.NewReader("hello"), files.WriteOptions{Mode: 0o751, MakeParents: true})
			if err != nil {
				t.Fatal(err)
			}
			if info.Name != "file" || info.Path != "a/b/c/file" || info.Size != 5 || info.Mode != "0751" ||
				info.Type != "file" || info.UID != user.UID || info.GID != user.GID || time.Since(info.ModTime) > time.Hour {
				t.Errorf("written: %+v", info)
			}
			writeFile(t, b, "a/b/c/file", "bye") // keeps the mode
			if info, err = files.Write(ctx, b, asUser, "a/b/c/file", strings.NewReader(" now"), files.WriteOptions{Append: true}); err != nil || info.Size != 7 {
				t.Errorf("appended: %+v, %v", info, err)
			}
			wantOutput(t, b, "cd ~/a/b/c && cat file && stat -c ' %a %u' file && ls -A", fmt.Sprintf("bye now 751 %d\nfile\n", user.UID))
			var part strings.Builder
			if info, err := files.Read(ctx, b, asUser, "a/b/c/file", 2, 3, &part); err != nil || part.String() != "e n" || info.Size != 7 {
				t.Errorf("read %q, %+v, %v", part.String(), info, err)
			}
			if _, err := files.Read(ctx, b, asUser, "a/b/c/file", 1<<40, 3, io.Discard); err != nil {
				t.Errorf("reading behind the end: %v", err)
			}
			wantOutput(t, b, "cd ~/a && ln -s b/c/file good && ln -s nowhere bad && ln -s /etc dir && mkfifo fifo", "")
			list, more, err := files.List(ctx, b, asUser, "a/", 0)
			var got []string
			for _, f := range list {
				got = append(got, strings.TrimSpace(fmt.Sprintln(f.Path, f.Type, f.Target)))
			}
			if want := []string{"a/b dir", "a/bad symlink nowhere", "a/dir symlink /etc", "a/fifo fifo", "a/good symlink b/c/file"}; err != nil || more || !slices.Equal(got, want) {
				t.Errorf("listed %q, %v, %v, want %q", got, more, err, want)
			}
			for path, want := range map[string]string{
				"a": "a dir ", "a/good": "good file b/c/file", "a/bad": "bad symlink nowhere", "a/fifo": "fifo fifo ",
				"/dev/null": "null device ", "/": "/ dir ", "a/dir": "dir dir /etc", "/proc/self/exe/": "",
			} {
				i, err := files.Stat(ctx, b, asUser, path)
				if got := i.Name + " " + i.Type + " " + i.Target; err == nil && got != want || err != nil && want != "" {
					t.Errorf("stat %s: %q, %v, want %q", path, got, err, want)
				}
			}
			writeFile(t, b, "a/good", "through a link")
			writeFile(t, b, "a/bad", "made by a link")
			wantOutput(t, b, "cd ~/a && cat b/c/file nowhere && readlink good bad", "through a linkmade by a linkb/c/file\nnowhere\n")
			wantError(t, "removing a full directory", files.Remove(ctx, b, asUser, "a", false), syscall.ENOTEMPTY)
			for _, path := range []string{"a/good", "a/dir/", "a/b/c/file", "a/b/c/"} {
				if err := files.Remove(ctx, b, asUser, path, false); err != nil {
					t.Error(err)
				}
			}
			if err := files.Remove(ctx, b, asUser, "a", true); err != nil {
				t.Error(err)
			}
			wantError(t, "removing nothing", files.Remove(ctx, b, asUser, "a", true), fs.ErrNotExist)
			wantOutput(t, b, "ls -A ~; test -e /etc/passwd", "")
		})
	}
}

// TestFilesRefused: every error that a path can give.
func TestFilesRefused(t *testing.T) {
	testutil.Long(t)
	b := newBox(t, engine.Spec{User: engine.User{UID: 1000, GID: 1000}})
	ctx := t.Context()
	wantOutput(t, b, "cd /tmp && mkdir dir shut && touch file && mkfifo fifo && ln -s loop loop && chmod 0 shut && ln -s /dev/zero zero && "+
		"python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"/tmp/socket\")'", "")
	read := func(path string) error { _, err := readFile(t, b, asUser, path); return err }
	write := func(path string) error {
		_, err := files.Write(ctx, b, asUser, path, strings.NewReader("x"), files.WriteOptions{})
		return err
	}
	add := func(path string) error {
		_, err := files.Write(ctx, b, asUser, path, strings.NewReader("x"), files.WriteOptions{Append: true})
		return err
	}
	list := func(path string) error { _, _, err := files.List(ctx, b, asUser, path, 0); return err }
	stat := func(path string) error { _, err := files.Stat(ctx, b, asUser, path); return err }
	mkdir := func(path string) error { return files.Mkdir(ctx, b, asUser, path, files.MkdirOptions{Parents: true}) }
	remove := func(path string) error { return files.Remove(ctx, b, asUser, path, true) }
	for _, c := range []struct {
		name string
		do   func(string) error
		path string
		want error
	}{
		{"read nothing", read, "/tmp/none", fs.ErrNotExist},
		{"read below a file", read, "/tmp/file/x", syscall.ENOTDIR},
		{"read dir", read, "/tmp/dir", files.ErrNotRegular},
		{"read FIFO", read, "/tmp/fifo", files.ErrNotRegular},
		{"read socket", read, "/tmp/socket", files.ErrNotRegular},
		{"read device", read, "/dev/zero", files.ErrNotRegular},
		{"read device by link", read, "/tmp/zero", files.ErrNotRegular},
		{"read terminal", read, "/dev/ptmx", files.ErrNotRegular},
		{"read stdin", read, "/dev/stdin", files.ErrNotRegular},
		{"read kernel log", read, "/proc/kmsg", fs.ErrPermission},
		{"read masked", read, "/proc/timer_list", files.ErrNotRegular},
		{"read loop", read, "/tmp/loop", syscall.ELOOP},
		{"read other's", read, "/etc/shadow", fs.ErrNotExist},
		{"read in shut", read, "/tmp/shut/x", fs.ErrPermission},
		{"read of PID 1", read, "/proc/1/environ", fs.ErrPermission},
		{"write nowhere", write, "/tmp/none/x", fs.ErrNotExist},
		{"write dir", write, "/tmp/dir", files.ErrNotRegular},
		{"write dir slash", write, "/tmp/dir/", syscall.EISDIR},
		{"write new slash", write, "/tmp/new/", syscall.EISDIR},
		{"write FIFO", write, "/tmp/fifo", files.ErrNotRegular},
		{"write socket", write, "/tmp/socket", files.ErrNotRegular},
		{"write device", write, "/dev/null", files.ErrNotRegular},
		{"write loop", write, "/tmp/loop", syscall.ELOOP},
		{"write system", write, "/usr/bin/x", syscall.EROFS},
		{"write in shut", write, "/tmp/shut/x", fs.ErrPermission},
		{"write proc", write, "/proc/sys/kernel/core_pattern", nil},
		{"append FIFO", add, "/tmp/fifo", files.ErrNotRegular},
		{"append device", add, "/dev/full", files.ErrNotRegular},
		{"append system", add, "/etc/passwd", fs.ErrPermission},
		{"list file", list, "/tmp/file", syscall.ENOTDIR},
		{"list FIFO", list, "/tmp/fifo", syscall.ENOTDIR},
		{"list nothing", list, "/tmp/none", fs.ErrNotExist},
		{"list shut", list, "/tmp/shut", fs.ErrPermission},
		{"stat nothing", stat, "/tmp/none", fs.ErrNotExist},
		{"stat in shut", stat, "/tmp/shut/x", fs.ErrPermission},
		{"mkdir file", mkdir, "/tmp/file", fs.ErrExist},
		{"mkdir below file", mkdir, "/tmp/file/x", syscall.ENOTDIR},
		{"mkdir system", mkdir, "/usr/x/y", syscall.EROFS},
		{"remove root", remove, "/", syscall.EINVAL},
		{"remove dot", remove, "/tmp/.", syscall.EINVAL},
		{"remove above", remove, "/tmp/dir/..", syscall.EINVAL},
		{"remove system", remove, "/usr/bin/env", syscall.EROFS},
		{"remove mount", remove, "/tmp", syscall.EROFS},
		{"remove proc", remove, "/proc/1", fs.ErrPermission},
		{"empty", read, "", engine.ErrInvalid},
		{"NUL", read, "/tmp/a\x00b", engine.ErrInvalid},
		{"long name", write, "/tmp/" + strings.Repeat("x", 256), engine.ErrInvalid},
		{"long path", read, strings.Repeat("/x", 2048), engine.ErrInvalid},
	} {
		err := c.do(c.path)
		if c.want == nil {
			if err == nil {
				t.Errorf("%s: no error", c.name)
			}
			continue
		}
		wantError(t, c.name, err, c.want)
	}
}

// TestFilesNames: any bytes but "/" and NUL.
func TestFilesNames(t *testing.T) {
	testutil.Long(t)
	b := newBox(t, engine.Spec{})
	ctx := t.Context()
	if err := files.Mkdir(ctx, b, asUser, "names", files.MkdirOptions{}); err != nil {
		t.Fatal(err)
	}
	names := []string{"-rf", " ", "a\nb", "\xff\xfe", "ä€", "\x1b[31m", `"\`, "...", "*", strings.Repeat("n", 255), "\r", "{}", "-"}
	for _, n := range names {
		writeFile(t, b, "names/"+n, n)
	}
	slices.Sort(names)
	list, _, err := files.List(ctx, b, asUser, "names", 0)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range list {
		got = append(got, f.Name)
	}
	if !slices.Equal(got, names) {
		t.Errorf("listed %q, want %q", got, names)
	}
	for _, n := range names {
		wantContent(t, b, "names/"+n, n)
		if err := files.Remove(ctx, b, asUser, "names/"+n, false); err != nil {
			t.Error(err)
		}
	}
	wantError(t, "missing", files.Remove(ctx, b, asUser, "names/a\nb\x1b", false), fs.ErrNotExist)
}

// pattern is endless content that is the same each time.
type pattern struct{ at uint64 }

func (p *pattern) Read(b []byte) (int, error) {
	for i := range b {
		p.at = p.at*6364136223846793005 + 1442695040888963407
		b[i] = byte(p.at >> 56)
	}
	return len(b), nil
}

// TestFilesLarge: 100 MB there and back.
func TestFilesLarge(t *testing.T) {
	testutil.Long(t)
	const size = 100 << 20
	dir := hostDir(t, 0, 0)
	b := newBox(t, engine.Spec{Mounts: []engine.Mount{{Source: dir, Target: engine.WorkspaceTarget}}, Limits: engine.Limits{Memory: 256 << 20}})
	sent, got := sha256.New(), sha256.New()
	began := time.Now()
	info, err := files.Write(t.Context(), b, asUser, "large", io.TeeReader(io.LimitReader(new(pattern), size), sent), files.WriteOptions{MaxBytes: size})
	if err != nil || info.Size != size {
		t.Fatalf("%+v, %v", info, err)
	}
	wrote := time.Since(began)
	if _, err := files.Read(t.Context(), b, asUser, "large", 0, size, got); err != nil {
		t.Fatal(err)
	}
	t.Logf("written in %v, read in %v", wrote, time.Since(began)-wrote)
	if !bytes.Equal(sent.Sum(nil), got.Sum(nil)) {
		t.Error("what was read is not what was written")
	}
}

// TestFilesAllOrNothing: content that is too long, or fails, changes nothing.
func TestFilesAllOrNothing(t *testing.T) {
	testutil.Long(t)
	b := newBox(t, engine.Spec{})
	boom := errors.New("boom")
	for name, how := range map[string]files.WriteOptions{"replace": {MaxBytes: 100_000}, "append": {MaxBytes: 100_000, Append: true}} {
		for _, c := range []struct {
			content io.Reader
			want    error
		}{
			{strings.NewReader(strings.Repeat("x", 100_001)), files.ErrTooLarge},
			{io.LimitReader(new(pattern), 1<<30), files.ErrTooLarge},
			{iotest.ErrReader(boom), boom},
			{io.MultiReader(strings.NewReader(strings.Repeat("x", 90_000)), iotest.ErrReader(boom)), boom},
		} {
			_, err := files.Write(t.Context(), b, asUser, "new", c.content, how)
			wantError(t, name, err, c.want)
			wantOutput(t, b, "ls -A ~", "")
		}
		writeFile(t, b, "old", "as it was")
		_, err := files.Write(t.Context(), b, asUser, "old", iotest.TimeoutReader(iotest.OneByteReader(strings.NewReader("abc"))), how)
		wantError(t, name, err, iotest.ErrTimeout)
		wantOutput(t, b, "ls -A ~; cat ~/old; rm ~/old", "old\nas it was")
		if _, err := files.Write(t.Context(), b, asUser, "exact", strings.NewReader(strings.Repeat("x", 100_000)), how); err != nil {
			t.Error(err)
		}
		wantOutput(t, b, "wc -c <~/exact; rm ~/exact", "100000\n")
	}
	if _, err := files.Write(t.Context(), b, asUser, "empty", strings.NewReader(""), files.WriteOptions{}); err != nil {
		t.Error(err)
	}
	wantContent(t, b, "empty", "")
}

// TestFilesFull: no room, and a limit on the size of a file.
func TestFilesFull(t *testing.T) {
	b := newBox(t, engine.Spec{TmpSize: 1 << 20, Limits: engine.Limits{FileSize: 300_000}})
	wantOutput(t, b, "head -c 200000 /dev/zero >/tmp/0; cp /tmp/0 /tmp/1; cp /tmp/0 /tmp/2; cp /tmp/0 /tmp/3; cp /tmp/0 /tmp/4", "")
	for _, how := range []files.WriteOptions{{}, {Append: true}} {
		_, err := files.Write(t.Context(), b, asUser, "/tmp/new", io.LimitReader(new(pattern), 250_000), how)
		wantError(t, "full tmpfs", err, syscall.ENOSPC)
		_, err = files.Write(t.Context(), b, asUser, "large", io.LimitReader(new(pattern), 400_000), how)
		wantError(t, "file size", err, syscall.EFBIG)
		t.Log(err)
	}
	wantOutput(t, b, "ls -A ~ /tmp", "/home/box:\n\n/tmp:\n0\n1\n2\n3\n4\n")
}

// TestFilesHugeDirectory: 20,000 entries, of which the first are listed.
func TestFilesHugeDirectory(t *testing.T) {
	testutil.Long(t)
	b := newBox(t, engine.Spec{Mounts: []engine.Mount{{Source: hostDir(t, 0, 0), Target: engine.WorkspaceTarget}}})
	want(t, run(t, b, python("import os\nos.mkdir('huge')\nfor i in range(20000): os.mknod(f'huge/{i:05}')")), engine.Exited, 0)
	for _, most := range []int{1, 777, files.MaxEntries} {
		list, truncated, err := files.List(t.Context(), b, asUser, "huge", most)
		if err != nil || !truncated || len(list) != most {
			t.Fatalf("%d: %d entries, %v, %v", most, len(list), truncated, err)
		}
		for i, f := range list {
			if f.Name != fmt.Sprintf("%05d", i) {
				t.Fatalf("entry %d of %d is %q", i, most, f.Name)
			}
		}
	}
	if _, _, err := files.List(t.Context(), b, asUser, "huge", files.MaxEntries+1); !errors.Is(err, engine.ErrInvalid) {
		t.Error(err)
	}
	if err := files.Remove(t.Context(), b, asUser, "huge", true); err != nil {
		t.Error(err)
	}
	wantOutput(t, b, "ls -A", "")
}

// TestFilesDeepTree: deeper than a path can name and than there are descriptors.
func TestFilesDeepTree(t *testing.T) {
	testutil.Long(t)
	b := newBox(t, engine.Spec{Limits: engine.Limits{OpenFiles: 32}})
	want(t, run(t, b, python("import os\nfor i in range(3000): os.mkdir('d'*9); os.mknod('f'); os.chdir('d'*9)")), engine.Exited, 0)
	if err := files.Remove(t.Context(), b, asUser, "ddddddddd", true); err != nil {
		t.Error(err)
	}
	wantOutput(t, b, "ls -A ~", "f\n")
}

// TestFilesRemoveSwapped: while a tree is removed, its directories turn into symlinks
// to what must stay, and back.
func TestFilesRemoveSwapped(t *testing.T) {
	testutil.Long(t)
	b := newBox(t, engine.Spec{})
	want(t, run(t, b, shell("mkdir -p ~/keep/d; for i in $(seq 200); do touch ~/keep/d/$i; done")), engine.Exited, 0)
	p := begin(t, b, python(`
import os, shutil
os.chdir("/home/box")
n = 0
while not os.path.exists("stop"):
    n += 1
    for step in (lambda: os.makedirs("t/a/b"), lambda: os.mknod(f"t/a/b/{n}"), lambda: os.rename("t/a", "t/x"), lambda: os.symlink("/home/box/keep", "t/a"),
                 lambda: os.unlink("t/a"), lambda: os.rename("t/x", "moved"), lambda: os.rename("moved", "t/a"), lambda: os.rename("t", "u"),
                 lambda: os.symlink("keep", "t"), lambda: os.unlink("t"), lambda: os.rename("u", "t")):
        try: step()
        except OSError: pass
`))
	for range 100 {
		err := files.Remove(t.Context(), b, files.Options{Timeout: 10 * time.Second}, "t", true)
		for _, fine := range []error{nil, fs.ErrNotExist, syscall.ESTALE, syscall.ENOTEMPTY, syscall.EBUSY} {
			if errors.Is(err, fine) || err == fine {
				err = nil
			}
		}
		if err != nil {
			t.Error(err)
		}
	}
	writeFile(t, b, "stop", "")
	if _, err := p.Wait(); err != nil {
		t.Error(err)
	}
	wantOutput(t, b, "ls ~/keep/d | wc -l", "200\n")
}

// TestFilesMounts: mounts keep their rules, and a tree is not removed across them.
func TestFilesMounts(t *testing.T) {
	testutil.Long(t)
	ro, rw := hostDir(t, 0, 0), hostDir(t, 0, 0)
	for _, dir := range []string{ro, rw} {
		if err := errors.Join(os.WriteFile(filepath.Join(dir, "file"), []byte("host"), 0o644), os.MkdirAll(filepath.Join(dir, "tree/in"), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	b := newBox(t, engine.Spec{Mounts: []engine.Mount{
		{Source: ro, Target: "/ro", ReadOnly: true}, {Source: rw, Target: "/rw"}, {Source: ro, Target: "/rw/tree/in"}, {Source: filepath.Join(rw, "file"), Target: "/one"},
	}})
	wantContent(t, b, "/ro/file", "host")
	for _, how := range []files.WriteOptions{{}, {Append: true}} {
		_, err := files.Write(t.Context(), b, asUser, "/ro/file", strings.NewReader("x"), how)
		wantError(t, "read-only", err, syscall.EROFS)
	}
	wantError(t, "read-only", files.Remove(t.Context(), b, asUser, "/ro/file", false), syscall.EROFS)
	wantError(t, "tree with a mount", files.Remove(t.Context(), b, asUser, "/rw/tree", true), syscall.EBUSY)
	wantError(t, "mount", files.Remove(t.Context(), b, asUser, "/rw/tree/in", true), syscall.EBUSY)
	wantContent(t, b, "/rw/tree/in/file", "host")
	_, err := files.Write(t.Context(), b, asUser, "/one", strings.NewReader("x"), files.WriteOptions{})
	if err == nil {
		t.Error("a mounted file was replaced")
	}
	if _, err := files.Write(t.Context(), b, asUser, "/one", strings.NewReader("ly"), files.WriteOptions{Append: true}); err != nil {
		t.Error(err)
	}
	wantContent(t, b, "/one", "hostly")
}

// TestFilesTimeout: an operation that something in the box stops, or that gets no
// content, ends in time and leaves nothing.
func TestFilesTimeout(t *testing.T) {
	testutil.Long(t)
	b := newBox(t, engine.Spec{})
	stopper := begin(t, b, python(`
import os, signal, sys
while True:
    for p in os.listdir("/proc"):
        if p.isdigit() and int(p) > 1 and int(p) != os.getpid():
            try: os.kill(int(p), signal.SIGSTOP)
            except OSError: pass
`))
	soon := files.Options{Timeout: 300 * time.Millisecond}
	began := time.Now()
	// It has to be caught first.
	deadline := time.Now().Add(patience)
	for {
		pr, pw := io.Pipe()
		_, err := files.Write(t.Context(), b, soon, "slow", pr, files.WriteOptions{})
		pw.Close()
		if errors.Is(err, files.ErrTimeout) {
			wantError(t, "stopped", err, files.ErrTimeout)
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	if took := time.Since(began); took > patience/2 {
		t.Errorf("took %v", took)
	}
	_ = stopper.Signal(syscall.SIGKILL)
	if _, err := stopper.Wait(); err != nil {
		t.Error(err)
	}
	wantOutput(t, b, "ls -A ~", "")
	ctx, cancel := context.WithCancel(t.Context())
	pr, pw := io.Pipe()
	defer pw.Close()
	time.AfterFunc(100*time.Millisecond, cancel)
	_, err := files.Write(ctx, b, asUser, "slow", pr, files.WriteOptions{})
	wantError(t, "canceled", err, context.Canceled)
	wantOutput(t, b, "ls -A ~", "")
}

// TestFilesNoProcesses: a box at its pids limit says so.
func TestFilesNoProcesses(t *testing.T) {
	testutil.Long(t)
	b := newBox(t, engine.Spec{Limits: engine.Limits{PIDs: 8}})
	for n := range 8 {
		p := begin(t, b, shell("exec sleep 1000"))
		defer func() { _ = p.Signal(syscall.SIGKILL); _, _ = p.Wait() }()
		_, err := files.Stat(t.Context(), b, asUser, "/tmp")
		if err != nil {
			wantError(t, fmt.Sprintf("%d others", n+1), err, syscall.EAGAIN)
			t.Log(err)
			if !strings.Contains(err.Error(), "pids limit") {
				t.Errorf("%v: does not say why", err)
			}
		}
		if n == 7 && err == nil {
			t.Error("no error in a full box")
		}
	}
}

// TestFilesOfLostBox: the error says that the box is gone.
func TestFilesOfLostBox(t *testing.T) {
	testutil.Long(t)
	b := newBox(t, engine.Spec{})
	remove(t, b)
	_, err := files.Stat(t.Context(), b, asUser, "/")
	wantError(t, "removed box", err, engine.ErrBoxLost)
}

func BenchmarkFilesStat(b *testing.B) {
	box := newBox(b, engine.Spec{})
	for b.Loop() {
		if _, err := files.Stat(b.Context(), box, asUser, "/"); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkFilesAgainstTrue(b *testing.B) {
	box := newBox(b, engine.Spec{})
	for b.Loop() {
		if _, err := engine.Run(b.Context(), box, engine.Command{Args: []string{"/bin/true"}}); err != nil {
			b.Fatal(err)
		}
	}
}

// callerSocket names the socket for a caller that this binary plays: see
// TestFilesUnprivileged.
const callerSocket = "BOXD_TEST_FILES_SOCKET"

func init() {
	if socket := os.Getenv(callerSocket); socket != "" {
		awaitAdmission()
		if err := playCaller(socket); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

// playCaller writes, reads and removes a file of a box, and gives up on one.
func playCaller(socket string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s, err := native.Connect(ctx, native.ServiceOptions{Socket: socket})
	if err != nil {
		return err
	}
	defer s.Close()
	b, err := s.Create(ctx, engine.Spec{User: engine.User{UID: 1000, GID: 1000}})
	if err != nil {
		return err
	}
	content := strings.Repeat("content ", 100_000)
	_, werr := files.Write(ctx, b, asUser, "a/file", strings.NewReader(content), files.WriteOptions{MakeParents: true})
	var got strings.Builder
	info, rerr := files.Read(ctx, b, asUser, "a/file", 0, 0, &got)
	if got.String() != content || info.UID != 1000 {
		rerr = errors.Join(rerr, fmt.Errorf("read %d bytes, %+v", got.Len(), info))
	}
	list, _, lerr := files.List(ctx, b, asUser, "a", 0)
	if len(list) != 1 {
		lerr = errors.Join(lerr, fmt.Errorf("listed %+v", list))
	}
	_, serr := files.Stat(ctx, b, files.Options{User: &engine.User{UID: 7, GID: 7}}, "/proc/self")
	merr := files.Mkdir(ctx, b, files.Options{User: &engine.User{UID: 7, GID: 7}}, "a/other", files.MkdirOptions{})
	if errors.Is(merr, fs.ErrPermission) {
		merr = nil
	} else {
		merr = fmt.Errorf("another user made a directory: %v", merr)
	}
	return errors.Join(werr, rerr, lerr, serr, merr, files.Remove(ctx, b, asUser, "a", true), b.Remove(ctx))
}

// TestFilesUnprivileged: the caller is a user without any privilege on this host.
func TestFilesUnprivileged(t *testing.T) {
	socket := startService(t, stateDir(t), strangerUID)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{callerSocket + "=" + socket}
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	admitted(t, cmd, socket, strangerUID)
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v: %s", err, out.String())
	}
}
