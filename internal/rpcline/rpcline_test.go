package rpcline

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		`{"jsonrpc":"2.0","id":1,"method":"x"}`:                "1 x",
		`{"jsonrpc":"2.0","id":"a","method":"x","params":[1]}`: `"a" x`,
		` {"jsonrpc": "2.0", "id": -1.5e3, "result": null} `:   "-1.5e3 ",
		`{"jsonrpc":"2.0","id":1,"error":{}}`:                  "1 ",
		`{"jsonrpc":"2.0","method":"x"}`:                       " x",
		``:                                                     "-32700",
		`null`:                                                 "-32600",
		`1`:                                                    "-32600",
		`[{"jsonrpc":"2.0","id":1,"method":"x"}]`:        "-32600",
		`{"jsonrpc":"2.0","id":null,"method":"x"}`:       "-32600",
		`{"jsonrpc":"2.0","id":true,"method":"x"}`:       "-32600",
		`{"jsonrpc":"2.0","id":1}`:                       "-32600",
		`{"jsonrpc":"2.0","result":1}`:                   "-32600",
		`{"jsonrpc":"2.0","id":1,"result":1,"error":{}}`: "-32600",
		`{"jsonrpc":"2.0","method":1}`:                   "-32600",
		`{"jsonrpc":"2.0","method":""}`:                  "-32600",
		`{"jsonrpc":2.0,"method":"x"}`:                   "-32600",
		`{"jsonrpc":"2.0","method":"x"}{}`:               "-32700",
	} {
		m, err := Parse([]byte(text))
		got := ""
		if err == nil {
			got = string(m.ID) + " " + m.Method
		} else {
			got = fmt.Sprint(Code(err))
		}
		if got != want {
			t.Errorf("%s: %q %v, want %q", text, got, err, want)
		}
	}
}

// A message that readers of JSON understand differently is refused.
func TestAmbiguous(t *testing.T) {
	for _, text := range []string{
		`{"jsonrpc":"2.0","id":1,"id":2,"method":"x"}`, `{"jsonrpc":"2.0","ID":1,"method":"x"}`, `{"jsonrpc":"2.0","method":"x","param\u017f":{}}`,
		`{"jsonrpc":"2.0","id":1,"method":"x","m\u0065thod" : "y"}`, `{"jsonrpc":"2.0","id":1,"result":{},"re\u017fult":{}}`, `{"jsonrpc":"2.0","id":1,"method":"x","y":1,"y":2}`,
	} {
		if _, err := Parse([]byte(text)); !errors.Is(err, ErrMembers) {
			t.Errorf("%s: %v", text, err)
		}
	}
	if m, err := Parse([]byte(`{"jsonrpc":"2.0","id":1,"method":"x","params":{"id":1,"ID":["id","id",{"\"id":1}],"id":"\\"},"x-id":"{\"id\":"}`)); err != nil {
		t.Errorf("members of parameters: %v, %v", m, err)
	}
}

// Lines are the same however the stream is cut, and one that is too long is reported once.
func TestLines(t *testing.T) {
	const limit = 16 << 20
	long := strings.Repeat("y", limit+1)
	stream := []byte("a\n\nbc\n" + long + "\nd\n" + long[1:] + "\nrest")
	for _, size := range []int{1 << 16, 1<<20 + 7, len(stream)} {
		l := Lines{Max: limit}
		got := ""
		for part := range bytesIn(stream, size) {
			l.Add(part, func(b []byte) {
				if len(b) > 10 {
					b = fmt.Appendf(nil, "(%d)", len(b))
				}
				got += string(b) + "|"
			}, func() { got += "too long|" })
		}
		if want := fmt.Sprintf("a||bc|too long|d|(%d)|", limit); got != want || string(l.rest) != "rest" {
			t.Errorf("in parts of %d: %q, want %q", size, got, want)
		}
	}
}

func bytesIn(b []byte, size int) func(func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for len(b) > 0 {
			n := min(size, len(b))
			if !yield(b[:n]) {
				return
			}
			b = b[n:]
		}
	}
}

// Read returns a last line without a newline, no blank ones, and has answered one that is too long.
func TestRead(t *testing.T) {
	var out strings.Builder
	w := Writer{W: &out}
	got := []string{}
	for line := range Read(t.Context(), io.MultiReader(strings.NewReader("a\n \r\n\nlonger than"), strings.NewReader(" eight\nb")), 8, w.Write) {
		got = append(got, string(line))
	}
	want := `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"a message must have at most 8 bytes"}}` + "\n"
	if strings.Join(got, "|") != "a|b" || out.String() != want {
		t.Errorf("lines %q, answers %s", got, out.String())
	}
}
