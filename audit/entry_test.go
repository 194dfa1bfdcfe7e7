package audit

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestDecode(t *testing.T) {
	line, hash, err := encode(record{Seq: 7, Prev: noHash, Entry: Entry{Time: time.Unix(0, 0).UTC(), Action: "exec"}})
	if err != nil {
		t.Fatal(err)
	}
	good := string(bytes.TrimSuffix(line, []byte("\n")))
	if r, h, err := decode([]byte(good)); err != nil || h != hash || r.Seq != 7 || r.Action != "exec" {
		t.Fatalf("%+v, %s, %v", r, h, err)
	}
	want := `{"seq":7,"time":"1970-01-01T00:00:00Z","action":"exec","prev":"` + noHash + `","hash":"` + hash + `"}`
	if good != want {
		t.Errorf("a line is %s\nwant %s", good, want)
	}
	seal := func(body string) string { return body + hashKey + digest([]byte(body)) + `"}` }
	for name, bad := range map[string]string{
		"empty":             "",
		"short":             `{"hash":"` + noHash + `"}`,
		"cut":               good[:len(good)-1],
		"more behind":       good + " ",
		"more in front":     " " + good,
		"upper case hash":   strings.Replace(good, hash, strings.ToUpper(hash), 1),
		"other hash":        strings.Replace(good, hash, noHash, 1),
		"other content":     strings.Replace(good, "exec", "exex", 1),
		"no JSON":           seal("{"),
		"not an object":     seal(`["a"`),
		"wrong types":       seal(`{"seq":"7"`),
		"negative number":   seal(`{"seq":-1`),
		"two values":        seal(`{"seq":1}{"seq":2`),
		"key without value": seal(`{"seq"`),
		"too long":          seal(`{"reason":"` + strings.Repeat("x", MaxLine) + `"`),
	} {
		if r, _, err := decode([]byte(bad)); err == nil {
			t.Errorf("%s: %.80q gave %+v", name, bad, r)
		}
	}
}

func TestLastIn(t *testing.T) {
	line := func(seq uint64) string {
		l, _, err := encode(record{Seq: seq, Prev: noHash})
		if err != nil {
			t.Fatal(err)
		}
		return string(l)
	}
	a, b := line(1), line(2)
	cases := []struct {
		text  string
		whole bool
		seq   uint64 // 0: none
		end   int
	}{
		{"", true, 0, 0},
		{"\n", true, 0, 0},
		{"\n\n\n", true, 0, 0},
		{"x", true, 0, 0},
		{a, true, 1, len(a)},
		{a, false, 0, 0}, // it may be the end of a longer line
		{"x\n" + a, false, 1, 2 + len(a)},
		{a + b, true, 2, len(a + b)},
		{a + b, false, 2, len(a + b)},
		{a + b[:len(b)-1], true, 2, len(a+b) - 1},
		{a + b[:len(b)-2], true, 1, len(a)},
		{a + "\n", true, 1, len(a)},
		{a + "x\ny\nz", true, 1, len(a)},
		{a + "\x00\x00\n", true, 1, len(a)},
		{"x" + a, true, 0, 0},
	}
	for i, c := range cases {
		head, end, ok := lastIn([]byte(c.text), c.whole)
		if ok != (c.seq > 0) || ok && (head.Seq != c.seq || end != c.end) {
			t.Errorf("%d: %+v, %d, %v; want entry %d up to %d", i, head, end, ok, c.seq, c.end)
		}
	}
}

// TestLongTail: the last line is found before a lot of junk, and far too much junk is not
// read into memory.
func TestLongTail(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	head := write(t, path, Options{}, 2)
	add := func(n int) {
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
		if err == nil {
			_, err = f.Write(bytes.Repeat([]byte(strings.Repeat("junk", 250)+"\n"), n))
		}
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	add(3 * MaxLine / 1001)
	l := open(t, path, Options{})
	if got := l.Head(); got.Seq != head.Seq+1 {
		t.Errorf("head %+v, want the record of what was torn behind %+v", got, head)
	}
	l.Close()
	if r := verify(t, path); len(r.Torn) != 1 || r.Torn[0].Bytes != 3*MaxLine/1001*1001 {
		t.Errorf("%+v, want one torn part", r)
	}
	add(maxJunk/1001 + 1)
	if _, err := Open(path, Options{}); err == nil || !strings.Contains(err.Error(), "are no lines of an audit log") {
		t.Errorf("Open: %v, want advice", err)
	}
	if _, err := Verify(path, Head{}); !errors.Is(err, ErrBroken) {
		t.Errorf("Verify: %v, want ErrBroken", err)
	}
}

func TestNumbers(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.log")
	for _, name := range []string{"a.log", "a.log.1", "a.log.10", "a.log.9", "a.log.0", "a.log.-1", "a.log.+3", "a.log.04", "a.log.x", "a.log.5.gz", "b.log.6", "a.log.", "xa.log.7", "a.log.99999999999999999999"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := numbers(path)
	if err != nil || len(got) != 3 || got[0] != 1 || got[1] != 9 || got[2] != 10 {
		t.Errorf("%v, %v; want 1, 9 and 10", got, err)
	}
}
