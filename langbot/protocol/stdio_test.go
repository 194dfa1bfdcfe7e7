package protocol

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf8"
)

// messages returns all messages of input.
func messages(input string) (all []string, err error) {
	l := NewLineReader(iotest.OneByteReader(strings.NewReader(input)))
	for {
		msg, err := l.Next()
		if err != nil {
			if _, again := l.Next(); again != err {
				return all, fmt.Errorf("reads on after %v: %v", err, again)
			}
			return all, err
		}
		all = append(all, string(msg))
	}
}

func TestLineReader(t *testing.T) {
	pad := func(n int) string { return `{"a":"` + strings.Repeat("x", n-8) + `"}` }
	tests := []struct {
		name, input string
		want        []string
		wrong       string // "" for a clean end
	}{
		{"lines", "{}\n\n  \nlog line\n[1]\n{\"a\":1}\r\n", []string{"{}", "{\"a\":1}\r"}, ""},
		{"the last without end", "{}\n{\"a\":1}", []string{"{}", `{"a":1}`}, ""},
		{"broken ones are skipped", "{\n{\"a\":}\n{\"a\":\"\xff\"}\n{}x\n{\"b\":1}\n", []string{`{"b":1}`}, ""},
		{"another type", `{"type":"chunk"}` + "\n" + `{"type":5}` + "\n", []string{`{"type":"chunk"}`, `{"type":5}`}, ""},
		{"64 KiB", pad(maxLine) + "\n", []string{pad(maxLine)}, ""},
		{"above 64 KiB", pad(maxLine+1) + "\n", nil, "longer than 65536"},
		{"above 64 KiB without end", strings.Repeat("x", maxLine+1), nil, "longer than 65536"},

		{"pieces", `{"type":"chunk_start","total_size":8}
{"type":"chunk_data","data":"{\"é\"","offset":0}

log
{"type":"chunk_data","data":"","offset":5}
{"type":"chunk_data","data":":1}","offset":5}
{"type":"chunk_end"}
{}
`, []string{`{"é":1}`, `{}`}, ""},
		{"pieces of something else", `{"type":"chunk_start","total_size":2}
{"type":"chunk_data","data":"[]","offset":0}
{"type":"chunk_end"}
{"type":"chunk_start","total_size":0}
{"type":"chunk_end"}
{}
`, []string{`{}`}, ""},
		{"negative", `{"type":"chunk_start","total_size":-1}`, nil, "total_size"},
		{"too much", `{"type":"chunk_start","total_size":16777217}`, nil, "total_size"},
		{"far too much", `{"type":"chunk_start","total_size":99999999999999999999}`, nil, "total_size"},
		{"no number", `{"type":"chunk_start","total_size":"5"}`, nil, "total_size"},
		{"a truth value", `{"type":"chunk_start","total_size":true}`, nil, "total_size"},
		{"a float", `{"type":"chunk_start","total_size":5.0}`, nil, "total_size"},
		{"missing total", `{"type":"chunk_start"}`, nil, "total_size"},
		{"twice", `{"type":"chunk_start","total_size":5}` + "\n" + `{"type":"chunk_start","total_size":5}`, nil, "another chunk_start"},
		{"another line", `{"type":"chunk_start","total_size":5}` + "\n{}", nil, "another line"},
		{"data of none", `{"type":"chunk_data","data":"","offset":0}`, nil, "chunk_data without chunk_start"},
		{"end of none", `{"type":"chunk_end"}`, nil, "chunk_end without chunk_start"},
		{"offset", `{"type":"chunk_start","total_size":5}` + "\n" + `{"type":"chunk_data","data":"x","offset":1}`, nil, "offset: want 0"},
		{"no offset", `{"type":"chunk_start","total_size":5}` + "\n" + `{"type":"chunk_data","data":"x"}`, nil, "offset"},
		{"negative offset", `{"type":"chunk_start","total_size":5}` + "\n" + `{"type":"chunk_data","data":"x","offset":-1}`, nil, "offset"},
		{"no data", `{"type":"chunk_start","total_size":5}` + "\n" + `{"type":"chunk_data","offset":0}`, nil, "data"},
		{"data no string", `{"type":"chunk_start","total_size":5}` + "\n" + `{"type":"chunk_data","data":5,"offset":0}`, nil, "data"},
		{"more than announced", `{"type":"chunk_start","total_size":1}` + "\n" + `{"type":"chunk_data","data":"é","offset":0}`, nil, "longer than the 1"},
		{"less than announced", `{"type":"chunk_start","total_size":5}` + "\n" + `{"type":"chunk_end"}`, nil, "it has 0 bytes, 5"},
		{"cut", `{"type":"chunk_start","total_size":5}` + "\n", nil, "unexpected EOF"},
		{"too many", `{"type":"chunk_start","total_size":5}` + "\n" + strings.Repeat(`{"type":"chunk_data","data":"","offset":0}`+"\n", 4097), nil, "more than 4096"},
		{"just as many", `{"type":"chunk_start","total_size":2}` + "\n" + `{"type":"chunk_data","data":"{}","offset":0}` + "\n" +
			strings.Repeat(`{"type":"chunk_data","data":"","offset":2}`+"\n", 4095) + `{"type":"chunk_end"}`, []string{"{}"}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := messages(tt.input)
			if fmt.Sprint(got) != fmt.Sprint(tt.want) {
				t.Errorf("got %.200q", got)
			}
			if tt.wrong == "" && err != io.EOF || tt.wrong != "" && !strings.Contains(err.Error(), tt.wrong) {
				t.Errorf("ended with %v", err)
			}
		})
	}
}

func TestWriteMessage(t *testing.T) {
	for _, text := range []string{"", "x", strings.Repeat("x", maxWhole), strings.Repeat(`"\`, maxWhole), strings.Repeat("é😀a", 20000), strings.Repeat("x", MaxMessage-10)} {
		msg, _ := json.Marshal(map[string]string{"": text})
		if len(msg) > MaxMessage {
			msg = msg[:0]
			t.Fatal("the test is wrong")
		}
		var out bytes.Buffer
		if err := WriteMessage(&out, msg); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(out.String()) {
			if len(line) > maxLine || !utf8.ValidString(line) || len(msg) <= maxWhole && line != string(msg)+"\n" {
				t.Errorf("line of %d bytes", len(line))
			}
		}
		got, err := NewLineReader(&out).Next()
		if err != nil || !bytes.Equal(got, msg) {
			t.Errorf("%d bytes became %d, %v", len(msg), len(got), err)
		}
	}
	var out bytes.Buffer
	if err := WriteMessage(&out, make([]byte, MaxMessage+1)); err == nil || out.Len() > 0 {
		t.Errorf("got %v", err)
	}
	if err := WriteMessage(&out, []byte("{\r\n\"a\":\n1}")); err != nil || out.String() != "{  \"a\": 1}\n" {
		t.Errorf("got %q, %v", out.String(), err)
	}
}

func FuzzStdio(f *testing.F) {
	f.Add([]byte("{}\n{\"type\":\"chunk_start\",\"total_size\":2}\n{\"type\":\"chunk_data\",\"data\":\"{}\",\"offset\":0}\n{\"type\":\"chunk_end\"}\n"))
	f.Add([]byte("{\"type\":\"chunk_start\",\"total_size\":16777216}\n\n{\"type\":\"chunk_data\",\"data\":\"\\ud800\",\"offset\":0}"))
	f.Fuzz(func(t *testing.T, input []byte) {
		l := NewLineReader(bytes.NewReader(input))
		for {
			msg, err := l.Next()
			if err != nil {
				return
			}
			if m := object(msg); m.err != nil || !utf8.Valid(msg) || len(msg) > MaxMessage {
				t.Fatalf("message %q", msg)
			}
			if !json.Valid(msg) {
				continue // NaN, or a message in pieces, which is not checked
			}
			var out, compact bytes.Buffer
			if err := WriteMessage(&out, msg); err != nil {
				t.Fatal(err)
			}
			got, err := NewLineReader(&out).Next()
			if err != nil {
				t.Fatalf("%q: %v", msg, err)
			}
			json.Compact(&compact, msg)
			var again bytes.Buffer
			json.Compact(&again, got)
			if !bytes.Equal(again.Bytes(), compact.Bytes()) {
				t.Fatalf("%q became %q", msg, got)
			}
		}
	})
}
