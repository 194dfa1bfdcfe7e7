package sse

import (
	"bufio"
	"errors"
	"io"
	"strings"
	"testing"
)

func TestNext(t *testing.T) {
	r := NewReader(strings.NewReader(": hello\n\nid: 7\nevent:kind\ndata: a\ndata:  b\nretry: 1\n\nevent: none\n\ndata\n\ndata:c\r\n\r\nid: 8\ndata: cut"), 64)
	for _, want := range []Event{{ID: "7", Type: "kind", Data: []byte("a\n b")}, {Type: "none", Data: []byte("c")}} {
		got, err := r.Next()
		if err != nil || got.ID != want.ID || got.Type != want.Type || string(got.Data) != string(want.Data) {
			t.Errorf("%+v %q, %v, want %+v", got, got.Data, err, want)
		}
	}
	if got, err := r.Next(); err != io.EOF {
		t.Errorf("at the end: %+v, %v", got, err)
	}
	if got, err := NewReader(strings.NewReader("data: "+strings.Repeat("x", 64)+"\n\n"), 64).Next(); !errors.Is(err, bufio.ErrTooLong) {
		t.Errorf("a long line: %+v, %v", got, err)
	}
}

func FuzzNext(f *testing.F) {
	f.Add("id: 1\nevent: e\ndata: d\n\n")
	f.Fuzz(func(t *testing.T, text string) {
		r := NewReader(strings.NewReader(text), 32)
		for {
			e, err := r.Next()
			if err != nil {
				return
			}
			if len(e.Data) == 0 {
				t.Errorf("%q has an event without data", text)
			}
		}
	})
}
