package audit

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func open(t *testing.T, path string, o Options) *Log {
	t.Helper()
	l, err := Open(path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// write makes a log with n entries and closes it.
func write(t *testing.T, path string, o Options, n int) Head {
	t.Helper()
	l := open(t, path, o)
	for i := range n {
		if err := l.Append(Entry{Tenant: "a", Action: "exec", Session: fmt.Sprint(i), Decision: Allow}); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return l.Head()
}

func verify(t *testing.T, path string) Report {
	t.Helper()
	r, err := Verify(path, Head{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestAppendAndReopen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	for round := range 3 {
		head := write(t, path, Options{}, 5)
		r := verify(t, path)
		if want := uint64(5 * (round + 1)); r.Entries != want || r.Head != head || r.First != 1 || len(r.Torn) != 0 {
			t.Fatalf("round %d: %+v, want %d entries and head %+v", round, r, want, head)
		}
	}
	st, err := os.Stat(path)
	if err != nil || st.Mode() != 0o600 {
		t.Errorf("mode %v, %v; want 0600", st.Mode(), err)
	}
}

func TestModeIsRepaired(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	write(t, path, Options{}, 1)
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	write(t, path, Options{}, 1)
	if st, _ := os.Stat(path); st.Mode() != 0o600 {
		t.Errorf("mode %v, want 0600", st.Mode())
	}
}

// TestForgery: no text in an entry can look like a line or like the end of one.
func TestForgery(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	l := open(t, path, Options{})
	evil := []string{
		"a\n{\"seq\":9}", "\r\n", "\x00\x1b[2J\x7f", "\xff\xfe", "\u2028\u2029\u0085", `","hash":"` + noHash + `"}`, `"}` + "\n", "\\", "\"",
	}
	for _, s := range evil {
		e := Entry{Tenant: s, Actor: s, Request: s, Action: s, Session: s, Box: s, Process: s, Decision: s, Reason: s,
			Details: map[string]any{s: s, "kind": "torn", "list": []string{s}}}
		if err := l.Append(e); err != nil {
			t.Fatal(err)
		}
	}
	if r := verify(t, path); r.Entries != uint64(len(evil)) {
		t.Errorf("%d entries, want %d", r.Entries, len(evil))
	}
	b, _ := os.ReadFile(path)
	for i, c := range b {
		if c < 0x20 && c != '\n' {
			t.Errorf("control character %#x at %d", c, i)
		}
	}
	lines := strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
	var first record
	if err := json.Unmarshal([]byte(lines[1]), &first); err != nil || first.Tenant != evil[0] || first.Kind != "" {
		t.Errorf("read back %+v, %v", first, err)
	}
}

func TestTime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	l := open(t, path, Options{})
	given := time.Date(2001, 2, 3, 4, 5, 6, 7, time.FixedZone("x", 3600))
	for _, when := range []time.Time{{}, given} {
		if err := l.Append(Entry{Time: when}); err != nil {
			t.Fatal(err)
		}
	}
	lines := readLines(t, path)
	var now, then record
	if json.Unmarshal([]byte(lines[1]), &now) != nil || time.Since(now.Time).Abs() > time.Minute {
		t.Errorf("zero time is %v, want now", now.Time)
	}
	if json.Unmarshal([]byte(lines[2]), &then) != nil || !then.Time.Equal(given) || !strings.Contains(lines[2], `"time":"2001-02-03T03:05:06.000000007Z"`) {
		t.Errorf("time is %v, want %v in UTC", then.Time, given)
	}
}

func readLines(t *testing.T, path string) []string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
}

func TestRotation(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	head := write(t, path, Options{MaxBytes: MinBytes, Keep: 3}, 300)
	list, err := numbers(path)
	if err != nil || len(list) != 3 {
		t.Fatalf("files %v, %v; want 3", list, err)
	}
	for _, n := range list {
		st, err := os.Stat(rotated(path, n))
		if err != nil || st.Size() > MinBytes || st.Mode() != 0o600 {
			t.Errorf("file %d: %v, %v", n, st, err)
		}
	}
	r := verify(t, path)
	if r.Files != 4 || r.Head != head || r.First == 1 {
		t.Errorf("%+v, want 4 files up to %+v", r, head)
	}
	write(t, path, Options{MaxBytes: MinBytes, Keep: 10}, 30) // keeping more does not make the deleted ones missing
	verify(t, path)
	write(t, path, Options{MaxBytes: MinBytes, Keep: 1}, 30)
	if r := verify(t, path); r.Files != 2 {
		t.Errorf("%d files, want 2", r.Files)
	}
}

func TestConcurrentAppend(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	l := open(t, path, Options{MaxBytes: 16 << 10, Keep: 1000})
	done := make(chan struct{})
	var verifying sync.WaitGroup
	verifying.Go(func() { // also while files are rotated
		for {
			select {
			case <-done:
				return
			default:
				if _, err := Verify(path, Head{}); err != nil {
					t.Error(err)
					return
				}
			}
		}
	})
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 100 {
				if err := l.Append(Entry{Session: fmt.Sprint(g), Process: fmt.Sprint(i)}); err != nil {
					t.Error(err)
				}
				l.Head()
				l.Healthy()
			}
		})
	}
	wg.Wait()
	close(done)
	verifying.Wait()
	if r := verify(t, path); r.Entries != 800 || r.Head != l.Head() || r.Files < 5 {
		t.Errorf("%+v, want 800 entries", r)
	}
}

func TestSecondOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	l := open(t, path, Options{})
	if _, err := Open(path, Options{}); !errors.Is(err, syscall.EWOULDBLOCK) {
		t.Errorf("second Open: %v, want EWOULDBLOCK", err)
	}
	l.Close()
	open(t, path, Options{})
}

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	link, fifo, sub := filepath.Join(dir, "link"), filepath.Join(dir, "fifo"), filepath.Join(dir, "sub")
	if err := errors.Join(os.Symlink("target", link), syscall.Mkfifo(fifo, 0o600), os.Mkdir(sub, 0o700)); err != nil {
		t.Fatal(err)
	}
	cases := []struct {
		path string
		o    Options
		want string
	}{
		{filepath.Join(dir, "no", "audit.log"), Options{}, "no such file"},
		{link, Options{}, "too many levels of symbolic links"},
		{fifo, Options{}, "not a regular file"},
		{sub, Options{}, "is a directory"},
		{filepath.Join(dir, "a"), Options{MaxBytes: MinBytes - 1}, "must be at least"},
		{filepath.Join(dir, "a"), Options{MaxBytes: -1}, "must be at least"},
		{filepath.Join(dir, "a"), Options{Keep: -1}, "must be at least"},
	}
	for _, c := range cases {
		l, err := Open(c.path, c.o)
		if err == nil {
			l.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), c.path) {
			t.Errorf("Open(%q, %+v): %v, want %q", c.path, c.o, err, c.want)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "target")); err == nil {
		t.Error("the target of the symlink was made")
	}
}

func TestBadEntries(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	l := open(t, path, Options{})
	for _, e := range []Entry{
		{Reason: strings.Repeat("x", MaxLine)},
		{Details: map[string]any{"a": make(chan int)}},
		{Details: map[string]any{"a": math.NaN()}},
		{Time: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)},
	} {
		if err := l.Append(e); !errors.Is(err, ErrEntry) {
			t.Errorf("Append: %v, want ErrEntry", err)
		}
	}
	if err := l.Healthy(); err != nil {
		t.Errorf("a bad entry made the log unhealthy: %v", err)
	}
	longest := Entry{Reason: strings.Repeat("x", MaxLine-1000)}
	if err := l.Append(longest); err != nil {
		t.Error(err)
	}
	l.Close()
	head := write(t, path, Options{}, 1) // and it is found again
	if r := verify(t, path); r.Head != head || r.Entries != 2 {
		t.Errorf("%+v, want 2 entries", r)
	}
}

func TestClosed(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "audit.log"), Options{})
	for range 2 {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := l.Append(Entry{}); !errors.Is(err, ErrClosed) {
		t.Errorf("Append: %v, want ErrClosed", err)
	}
	if err := l.Healthy(); !errors.Is(err, ErrClosed) {
		t.Errorf("Healthy: %v, want ErrClosed", err)
	}
}

// failing is a file on a disk that is full after room bytes.
type failing struct {
	logFile
	room        int
	syncErr     error
	truncateErr error
}

func (f *failing) Write(p []byte) (int, error) {
	if len(p) <= f.room {
		f.room -= len(p)
		return f.logFile.Write(p)
	}
	n, _ := f.logFile.Write(p[:f.room])
	f.room = 0
	return n, syscall.ENOSPC
}

func (f *failing) Sync() error { return errors.Join(f.syncErr, f.logFile.Sync()) }
func (f *failing) Truncate(n int64) error {
	if f.truncateErr != nil {
		return f.truncateErr
	}
	return f.logFile.Truncate(n)
}

func TestFullDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	l := open(t, path, Options{})
	disk := &failing{logFile: l.file, room: 300}
	l.file = disk
	e := Entry{Action: "exec", Reason: strings.Repeat("x", 100)}
	written := uint64(0)
	for range 5 {
		if l.Append(e) == nil {
			written++
		}
	}
	if err := l.Append(e); !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), path) {
		t.Errorf("Append: %v, want ENOSPC with the path", err)
	}
	if err := l.Healthy(); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("Healthy: %v, want ENOSPC", err)
	}
	disk.truncateErr, disk.room = syscall.EIO, 10
	if err := l.Append(e); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("Append: %v, want ENOSPC", err)
	}
	disk.room = 1 << 20
	if err := l.Append(e); !errors.Is(err, syscall.EIO) {
		t.Errorf("Append behind part of a line: %v, want EIO", err)
	}
	disk.truncateErr = nil
	if err := l.Append(e); err != nil {
		t.Fatal(err)
	}
	if err := l.Healthy(); err != nil {
		t.Errorf("Healthy: %v, want nil", err)
	}
	if r := verify(t, path); r.Entries != written+1 || r.Unfinished != 0 || len(r.Torn) != 0 {
		t.Errorf("%+v, want %d entries", r, written+1)
	}
	// Nobody appends while the log is unhealthy: it notices by itself.
	disk.room = 0
	if err := l.Append(e); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("Append: %v, want ENOSPC", err)
	}
	disk.room = 1 << 20
	for range 2 {
		if err := l.Healthy(); err != nil {
			t.Errorf("Healthy with room again: %v", err)
		}
	}
	if r := verify(t, path); r.Entries != written+2 || !strings.Contains(readLines(t, path)[written+2], `"action":"audit-resumed"`) {
		t.Errorf("%+v, want %d entries", r, written+2)
	}
}

func TestSyncOption(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	l := open(t, path, Options{Sync: true})
	l.file = &failing{logFile: l.file, room: 1 << 20, syncErr: syscall.EIO}
	if err := l.Append(Entry{}); !errors.Is(err, syscall.EIO) {
		t.Errorf("Append: %v, want EIO", err)
	}
	if r := verify(t, path); r.Entries != 0 {
		t.Errorf("%d entries, want none", r.Entries)
	}
}

// TestRotationFails: a rotation that cannot be done is an error of the entry, and is
// gone on with at the next one.
func TestRotationFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	l := open(t, path, Options{MaxBytes: MinBytes, Keep: 2})
	e := Entry{Reason: strings.Repeat("x", MinBytes/2)}
	for range 2 {
		if err := l.Append(e); err != nil {
			t.Fatal(err)
		}
	}
	list, _ := numbers(path)
	// A directory in the way of the new name.
	if err := os.Mkdir(rotated(path, l.number), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := l.Append(e); err == nil {
		t.Error("Append: nil, want an error")
	}
	if err := os.Remove(rotated(path, l.number)); err != nil {
		t.Fatal(err)
	}
	if err := l.Append(e); err != nil {
		t.Fatal(err)
	}
	if r := verify(t, path); r.Entries != 3 || r.Files != len(list)+2 {
		t.Errorf("%+v", r)
	}
}

func BenchmarkAppend(b *testing.B) {
	l, err := Open(filepath.Join(b.TempDir(), "audit.log"), Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	e := Entry{Tenant: "a", Actor: "uid:1000", Request: "0123456789abcdef", Action: "exec", Session: "s", Box: "b", Decision: Done,
		Details: map[string]any{"verdict": "exited", "exit_code": 0}}
	for b.Loop() {
		if err := l.Append(e); err != nil {
			b.Fatal(err)
		}
	}
}
