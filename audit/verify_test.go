package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// logs makes a log of several files and returns its path and the numbers of the
// full ones.
func logs(t *testing.T, keep int) (string, []int) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "audit.log")
	write(t, path, Options{MaxBytes: MinBytes, Keep: keep}, 60)
	list, err := numbers(path)
	if err != nil || len(list) < 3 {
		t.Fatalf("files %v, %v; want at least 3", list, err)
	}
	return path, list
}

// edit changes the lines of a file.
func edit(t *testing.T, path string, change func(lines []string) []string) {
	t.Helper()
	text := strings.Join(change(readLines(t, path)), "\n")
	if text != "" {
		text += "\n"
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// reseal gives a line that was changed a hash that matches.
func reseal(line string) string {
	body := line[:len(line)-tailLen]
	return body + hashKey + digest([]byte(body)) + `"}`
}

func TestVerifyFinds(t *testing.T) {
	replace := func(s, old, new string) string {
		if !strings.Contains(s, old) {
			panic("no " + old + " in " + s)
		}
		return strings.Replace(s, old, new, 1)
	}
	cases := []struct {
		name   string
		file   int // index of the full file that is changed; -1: the current one
		change func(l []string) []string
		want   string
	}{
		{"edit", 0, func(l []string) []string { l[3] = replace(l[3], `"allow"`, `"deny"`); return l }, ":4: its hash does not match"},
		{"edit one bit of a hash", 1, func(l []string) []string { l[2] = l[2][:len(l[2])-3] + "g\"}"; return l }, ":3: "},
		{"edit with a new hash", 0, func(l []string) []string { l[3] = reseal(replace(l[3], `"allow"`, `"deny"`)); return l }, ":5: does not follow the line before"},
		{"edit with a new hash at a file's end", 0, func(l []string) []string {
			l[len(l)-1] = reseal(replace(l[len(l)-1], `"allow"`, `"deny"`))
			return l
		}, ":1: does not follow the line before"},
		{"delete", 1, func(l []string) []string { return append(l[:2], l[3:]...) }, ":3: entry "},
		{"delete the first", 1, func(l []string) []string { return l[1:] }, ":1: entry "},
		{"delete the end of a full file", 1, func(l []string) []string { return l[:len(l)-2] }, ":1: entry "},
		{"delete the start of the oldest file", 0, func(l []string) []string { return l[2:] }, ":1: entry "},
		{"empty the oldest file", 0, func(l []string) []string { return nil }, "has none"},
		{"repeat", -1, func(l []string) []string { return append(l[:2], l[1:]...) }, ":3: entry "},
		{"swap", 0, func(l []string) []string { l[2], l[3] = l[3], l[2]; return l }, ":3: entry "},
		{"insert what is no line", 0, func(l []string) []string { return append(l[:2], append([]string{"x"}, l[2:]...)...) }, ":3: not a line"},
		{"insert an empty line", 0, func(l []string) []string { return append(l[:2], append([]string{""}, l[2:]...)...) }, ":3: not a line"},
		{"insert a forged line", 0, func(l []string) []string { return append(l[:2], append([]string{reseal(l[2])}, l[2:]...)...) }, ":4: entry "},
		{"what is no line at the end", -1, func(l []string) []string { return append(l, "x") }, "not a line"},
		{"an edited last line", -1, func(l []string) []string { l[len(l)-1] = replace(l[len(l)-1], "allow", "deny"); return l }, "its hash does not match"},
		{"an anchor in the middle", 0, func(l []string) []string {
			return append(l, reseal(replace(replace(l[0], `"seq":1,`, fmt.Sprintf(`"seq":%d,`, len(l)+1)), noHash, hashOf(l[len(l)-1]))))
		}, "an anchor that is not at the start"},
		{"an unknown kind", -1, func(l []string) []string {
			l[len(l)-1] = reseal(replace(l[len(l)-1], `,"time"`, `,"kind":"note","time"`))
			return l
		}, `its kind "note" is unknown`},
		{"a torn line of nothing", -1, func(l []string) []string {
			l[len(l)-1] = reseal(replace(l[len(l)-1], `,"time"`, `,"kind":"torn","time"`))
			return l
		}, "there is none"},
		{"carriage returns", 0, func(l []string) []string { l[3] += "\r"; return l }, ":4: "},
	}
	for _, c := range cases {
		path, list := logs(t, 100)
		file := path
		if c.file >= 0 {
			file = rotated(path, list[c.file])
		}
		edit(t, file, c.change)
		_, err := Verify(path, Head{})
		var bad *BrokenError
		if !errors.Is(err, ErrBroken) || !errors.As(err, &bad) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

func hashOf(line string) string { return line[len(line)-2-hashLen : len(line)-2] }

func TestVerifyFindsFiles(t *testing.T) {
	rename := func(a, b string) {
		if err := os.Rename(a, b); err != nil {
			t.Fatal(err)
		}
	}
	cases := []struct {
		name   string
		change func(path string, list []int)
		want   string
	}{
		{"the oldest is deleted", func(p string, l []int) { os.Remove(rotated(p, l[0])) }, "the last anchor says that it is kept"},
		{"the two oldest are deleted", func(p string, l []int) { os.Remove(rotated(p, l[0])); os.Remove(rotated(p, l[1])) }, "the last anchor says that it is kept"},
		{"one in the middle is deleted", func(p string, l []int) { os.Remove(rotated(p, l[1])) }, "is missing"},
		{"files are swapped", func(p string, l []int) {
			rename(rotated(p, l[0]), p+".x")
			rename(rotated(p, l[1]), rotated(p, l[0]))
			rename(p+".x", rotated(p, l[1]))
		}, ":1: entry "},
		{"a file is replaced by a directory", func(p string, l []int) { os.Remove(rotated(p, l[0])); os.Mkdir(rotated(p, l[0]), 0o700) }, "is a directory"},
		{"a file is added", func(p string, l []int) {
			b, _ := os.ReadFile(rotated(p, l[len(l)-1]))
			os.WriteFile(rotated(p, l[len(l)-1]+1), b, 0o600)
		}, ":1: "},
		{"all is emptied", func(p string, l []int) {
			for _, n := range l {
				os.Remove(rotated(p, n))
			}
			os.Truncate(p, 0)
		}, "holds no line"},
		{"only the last is left", func(p string, l []int) {
			for _, n := range l {
				os.Remove(rotated(p, n))
			}
		}, ":1: "},
	}
	for _, keep := range []int{100, 3} {
		for _, c := range cases {
			path, list := logs(t, keep)
			if verify(t, path); t.Failed() {
				return
			}
			c.change(path, list)
			want := c.want
			if keep == 3 && (c.name == "all is emptied" || c.name == "files are swapped") {
				want = ""
			}
			if _, err := Verify(path, Head{}); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s (keep %d): %v, want %q", c.name, keep, err, want)
			}
		}
	}
}

// TestHead: with a known head, also a cut at the end and a chain written anew are
// found; without one they are not, as is documented.
func TestHead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	head := write(t, path, Options{}, 10)
	later := write(t, path, Options{}, 5)
	for _, known := range []Head{{}, head, later} {
		if _, err := Verify(path, known); err != nil {
			t.Errorf("%+v: %v", known, err)
		}
	}
	edit(t, path, func(l []string) []string { return l[:len(l)-2] })
	if _, err := Verify(path, Head{}); err != nil {
		t.Errorf("a cut at the end: %v; it cannot be seen without a head", err)
	}
	if _, err := Verify(path, later); !errors.Is(err, ErrBroken) || !strings.Contains(err.Error(), "the end was cut off") {
		t.Errorf("a cut at the end: %v", err)
	}
	if _, err := Verify(path, head); err != nil {
		t.Errorf("a cut behind the head: %v", err)
	}
	os.Remove(path)
	write(t, path, Options{}, 20)
	if _, err := Verify(path, head); !errors.Is(err, ErrBroken) || !strings.Contains(err.Error(), "written anew") {
		t.Errorf("a new chain: %v", err)
	}
	rotated := filepath.Join(t.TempDir(), "audit.log")
	first := write(t, rotated, Options{}, 1)
	write(t, rotated, Options{MaxBytes: MinBytes, Keep: 1}, 100)
	if _, err := Verify(rotated, first); !errors.Is(err, ErrBroken) || !strings.Contains(err.Error(), "cannot be compared") {
		t.Errorf("a head that was rotated away: %v", err)
	}
}

func TestVerifyNothing(t *testing.T) {
	dir := t.TempDir()
	for _, path := range []string{filepath.Join(dir, "none"), filepath.Join(dir, "no", "dir")} {
		if _, err := Verify(path, Head{}); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v, want ErrNotExist", path, err)
		}
	}
}

// TestTornLine cuts a log at every byte of its last line: whatever a crash leaves, the log
// opens, continues, and records what it found.
func TestTornLine(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "audit.log")
	write(t, path, Options{}, 3)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lastStart := bytes.LastIndexByte(whole[:len(whole)-1], '\n') + 1
	for cut := lastStart; cut <= len(whole); cut++ {
		if err := os.WriteFile(path, whole[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		before := verify(t, path)
		wantTorn := cut > lastStart && cut < len(whole)
		if (before.Unfinished > 0) != wantTorn {
			t.Fatalf("cut at %d: %+v before opening", cut, before)
		}
		head := write(t, path, Options{}, 1)
		r := verify(t, path)
		wantEntries := uint64(3)
		if cut >= len(whole)-1 { // all of the line is there but for its newline
			wantEntries, wantTorn = 4, false
		}
		if r.Entries != wantEntries || r.Head != head || (len(r.Torn) == 1) != wantTorn || r.Unfinished != 0 {
			t.Fatalf("cut at %d: %+v", cut, r)
		}
		if wantTorn {
			if r.Torn[0].Bytes != int64(cut-lastStart) || r.Torn[0].Line != 4 {
				t.Fatalf("cut at %d: %+v", cut, r.Torn)
			}
			after, _ := os.ReadFile(path)
			if !bytes.HasPrefix(after, whole[:cut]) {
				t.Fatalf("cut at %d: what was torn is gone", cut)
			}
		}
	}
}

// TestTornTwice: a crash while a torn line is being recorded, and one at the start
// of a file.
func TestTornTwice(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	write(t, path, Options{}, 2)
	add := func(s string) {
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
		if err == nil {
			_, err = f.WriteString(s)
		}
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	add(`{"seq":4,"time"`)
	add("\n" + `{"seq":4,"kind":"torn","ti`)
	write(t, path, Options{}, 1)
	add("\x00\x00\x00")
	write(t, path, Options{}, 1)
	add("whole line\n")
	write(t, path, Options{}, 1)
	r := verify(t, path)
	if r.Entries != 5 || len(r.Torn) != 3 {
		t.Errorf("%+v, want 5 entries and 3 torn lines", r)
	}
	// The record of a torn line describes exactly the bytes before it.
	edit(t, path, func(l []string) []string {
		for i := range l {
			if l[i] == "whole line" {
				l[i] = "whale line"
			}
		}
		return l
	})
	if _, err := Verify(path, Head{}); !errors.Is(err, ErrBroken) {
		t.Errorf("a torn line was changed: %v, want ErrBroken", err)
	}
}

// TestCrashInRotation: between the steps of a rotation.
func TestCrashInRotation(t *testing.T) {
	for name, crash := range map[string]func(path string, next int) error{
		"after the rename": func(p string, next int) error { return os.Rename(p, rotated(p, next)) },
		"after the creation": func(p string, next int) error {
			return errors.Join(os.Rename(p, rotated(p, next)), os.WriteFile(p, nil, 0o600))
		},
		"in the anchor": func(p string, next int) error {
			return errors.Join(os.Rename(p, rotated(p, next)), os.WriteFile(p, []byte(`{"seq":`), 0o600))
		},
		"before old are deleted": func(p string, next int) error { return nil },
		"with junk as a new file": func(p string, next int) error {
			return errors.Join(os.Rename(p, rotated(p, next)), os.WriteFile(p, []byte("x\ny\n"), 0o600))
		},
	} {
		path, list := logs(t, 5)
		if err := crash(path, list[len(list)-1]+1); err != nil {
			t.Fatal(err)
		}
		if name == "after the rename" || name == "after the creation" {
			verify(t, path)
		}
		head := write(t, path, Options{MaxBytes: MinBytes, Keep: 5}, 40)
		if r := verify(t, path); r.Head != head {
			t.Errorf("%s: %+v, want head %+v", name, r, head)
		}
	}
}

func TestOpenAfterDamage(t *testing.T) {
	path, list := logs(t, 100)
	os.Remove(path)
	if err := os.WriteFile(rotated(path, list[len(list)-1]), []byte("x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path, Options{}); err == nil || !strings.Contains(err.Error(), "move it and all older ones away") {
		t.Errorf("%v, want advice", err)
	}
}

// TestOldestIsNotForgotten: deleting the oldest file before a rotation does not make
// the next anchor excuse it.
func TestOldestIsNotForgotten(t *testing.T) {
	path, list := logs(t, 100)
	if err := os.Remove(rotated(path, list[0])); err != nil {
		t.Fatal(err)
	}
	write(t, path, Options{MaxBytes: MinBytes, Keep: 100}, 60)
	if _, err := Verify(path, Head{}); !errors.Is(err, ErrBroken) || !strings.Contains(err.Error(), "is missing") {
		t.Errorf("%v, want a missing file", err)
	}
}

// seed is a log with an anchor and four entries, always the same bytes: each worker
// of the fuzzer makes it anew.
func seed(f *testing.F) []byte {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var all []byte
	head := Head{Hash: noHash}
	for i := range 5 {
		r := record{Seq: head.Seq + 1, Prev: head.Hash, Entry: Entry{Time: at, Action: "exec", Details: map[string]any{"n": i}}}
		if i == 0 {
			r.Kind, r.Anchor, r.Entry = kindAnchor, &anchor{File: 1, Oldest: 1}, Entry{Time: at}
		}
		line, hash, err := encode(r)
		if err != nil {
			f.Fatal(err)
		}
		all, head = append(all, line...), Head{Seq: r.Seq, Hash: hash}
	}
	return all
}

func FuzzVerify(f *testing.F) {
	whole := seed(f)
	path := filepath.Join(f.TempDir(), "audit.log") // each worker has one
	for _, b := range [][]byte{whole, whole[:len(whole)/2], nil, []byte("\n"), []byte("{}\n"), bytes.Repeat([]byte("a\n"), 100), append(bytes.Clone(whole), "x\n"...)} {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := Verify(path, Head{})
		if err != nil && (!errors.Is(err, ErrBroken) || strings.Contains(err.Error(), "\n")) {
			t.Fatalf("%v is not an ErrBroken on one line", err)
		}
		// An intact log that differs from the one written is a prefix of it, perhaps with a
		// partial line at its end: anything else needs a break of SHA-256, or a new chain.
		if err == nil && r.Entries > 0 && !bytes.HasPrefix(whole, b[:len(b)-int(r.Unfinished)]) && !resealed(b) {
			t.Fatalf("%q passed as %+v", b, r)
		}
		l, err := Open(path, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Append(Entry{Action: "after"}); err != nil {
			t.Fatal(err)
		}
		l.file.Close() // without the sync of l.Close, which takes most of the time
		after, err := os.ReadFile(path)
		if err != nil || !bytes.HasPrefix(after, b) {
			t.Fatalf("opening changed what was there: %v", err)
		}
		if last := readLines(t, path); !json.Valid([]byte(last[len(last)-1])) {
			t.Fatalf("last line %q", last[len(last)-1])
		}
	})
}

// resealed says whether b was not made from the seed's lines: a fuzzer does not
// find a SHA-256, so this is for a corpus that was written by hand.
func resealed(b []byte) bool { return !bytes.Contains(b, []byte(noHash)) }

// TestEveryByte: no byte can be changed without Verify telling. Only the last
// newline leaves a log that may be one being written.
func TestEveryByte(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	write(t, path, Options{}, 3)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := range whole {
		for _, flip := range []byte{1, 0x80} {
			b := bytes.Clone(whole)
			b[i] ^= flip
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
			r, err := Verify(path, Head{})
			if !errors.Is(err, ErrBroken) && (i != len(whole)-1 || r.Unfinished == 0) {
				t.Fatalf("byte %d changed by %#x: %+v, %v", i, flip, r, err)
			}
		}
	}
}
