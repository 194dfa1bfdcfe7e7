package proto

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"strings"
	"syscall"
	"testing"
)

func TestReplyRoundTrip(t *testing.T) {
	for _, r := range []Reply{
		{},
		{Truncated: true},
		{Info: &Info{Name: []byte("\xff\n"), Size: 1 << 40, Mode: 0o100644, Sec: -1, Nsec: 5, UID: 1000, GID: 65534, Target: []byte("/x")}},
		{Failure: &Failure{Step: "opening", Path: []byte("a\xfe"), Errno: syscall.ENOENT, Type: syscall.S_IFIFO}},
	} {
		line, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := ParseReply(line); err != nil || !reflect.DeepEqual(got, r) {
			t.Errorf("%s: %+v, %v, want %+v", line, got, err, r)
		}
	}
}

func TestBadReplies(t *testing.T) {
	for _, in := range []string{
		"", "\n", "null x", "{}{}", "[]", `{"failure":{"errno":0}}`, `{"failure":{"errno":4096}}`, `{"failure":{"errno":-1}}`,
		`{"info":{"size":"1"}}`, `{"info":{"size":1e30}}`, "runtime: failed", `{"info":{"name":"%"}}`, strings.Repeat(" ", MaxReply) + "{}",
	} {
		if r, err := ParseReply([]byte(in)); !errors.Is(err, ErrProtocol) {
			t.Errorf("%.40q: %+v, %v, want ErrProtocol", in, r, err)
		}
	}
}

// The longest possible names and links fit in a line and in a reply.
func TestLongestInfo(t *testing.T) {
	i := Info{
		Name: bytes.Repeat([]byte{'n'}, 255), Target: bytes.Repeat([]byte{'t'}, 4095), Size: 1<<63 - 1,
		Mode: 1<<32 - 1, Sec: -1 << 63, Nsec: 999999999, UID: 1<<32 - 1, GID: 1<<32 - 1,
	}
	line, err := json.Marshal(i)
	if err != nil {
		t.Fatal(err)
	}
	list, err := ParseList(append(line, '\n'), 1)
	if err != nil || len(list) != 1 || !reflect.DeepEqual(list[0], i) {
		t.Errorf("%d bytes: %v", len(line), err)
	}
	reply, _ := json.Marshal(Reply{Info: &i})
	if _, err := ParseReply(reply); err != nil {
		t.Error(err)
	}
}

func TestBadLists(t *testing.T) {
	one := `{"name":"YQ==","size":1,"mode":33188}` + "\n"
	if list, err := ParseList([]byte(one+one), 2); err != nil || len(list) != 2 {
		t.Errorf("%+v, %v", list, err)
	}
	for _, in := range []string{one + one + one, one + "x\n", one + "{}", strings.Repeat(" ", MaxInfo) + "\n", "\n", one[:10]} {
		if list, err := ParseList([]byte(in), 2); !errors.Is(err, ErrProtocol) {
			t.Errorf("%.60q: %+v, %v, want ErrProtocol", in, list, err)
		}
	}
}

func TestChunks(t *testing.T) {
	for _, c := range []struct {
		in, want string
		err      error
	}{
		{"\x00\x00\x00\x03abc\x00\x00\x00\x00", "abc", io.EOF},
		{"\x00\x00\x00\x01a\x00\x00\x00\x01b\x00\x00\x00\x00rest", "ab", io.EOF},
		{"\x00\x00\x00\x00", "", io.EOF},
		{"", "", io.ErrUnexpectedEOF},
		{"\x00\x00\x00", "", io.ErrUnexpectedEOF},
		{"\x00\x00\x00\x03ab", "", io.ErrUnexpectedEOF},
		{"\x00\x00\x00\x01a", "a", io.ErrUnexpectedEOF},
		{"\x00\x01\x00\x01a", "", ErrProtocol},
		{"\xff\xff\xff\xff", "", ErrProtocol},
	} {
		r, buf, got := strings.NewReader(c.in), make([]byte, MaxChunk), ""
		var err error
		for err == nil {
			var chunk []byte
			chunk, err = ReadChunk(r, buf)
			got += string(chunk)
		}
		if got != c.want || !errors.Is(err, c.err) {
			t.Errorf("%q: %q, %v, want %q, %v", c.in, got, err, c.want, c.err)
		}
	}
}

func TestChunkHeader(t *testing.T) {
	buf := make([]byte, MaxChunk)
	for _, n := range []int{1, 255, 256, MaxChunk - 1, MaxChunk} {
		in := make([]byte, ChunkHeader+n)
		PutHeader(in, n)
		if chunk, err := ReadChunk(bytes.NewReader(in), buf); err != nil || len(chunk) != n {
			t.Errorf("%d: %d bytes, %v", n, len(chunk), err)
		}
	}
}

// FuzzReply feeds arbitrary bytes in place of a reply and of a listing.
func FuzzReply(f *testing.F) {
	f.Add([]byte(`{"failure":{"step":"a","path":"YQ==","errno":2,"type":4096}}` + "\n"))
	f.Add([]byte(`{"info":{"name":"YQ==","size":1,"mode":33188,"sec":1,"nsec":2,"uid":1,"gid":1,"target":"YQ=="},"truncated":true}`))
	f.Add([]byte(`{"name":"YQ==","size":1,"mode":33188}` + "\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		if r, err := ParseReply(in); err == nil && (len(in) > MaxReply || r.Failure != nil && r.Failure.Errno == 0) {
			t.Errorf("%q: %+v", in, r)
		}
		if list, err := ParseList(in, 3); err == nil && len(list) > 3 {
			t.Errorf("%q: %d files", in, len(list))
		}
	})
}
