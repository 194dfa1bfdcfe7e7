package transfer

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/boxd/boxd/internal/testutil"
	"github.com/boxd/boxd/langbot/protocol"
)

func TestMain(m *testing.M) { testutil.MainUnprivileged(m) }

const limit = 100_000

func newSet(t *testing.T) *Set {
	t.Helper()
	s := NewSet(t.TempDir(), limit, NewPool(math.MaxInt64))
	t.Cleanup(s.Close)
	return s
}

// request is a chunk as the client sends it.
func request(key string, index, amount int, p []byte) json.RawMessage {
	data, err := json.Marshal(map[string]any{
		"file_key": key, "file_length": 1, "chunk_base64": base64.StdEncoding.EncodeToString(p),
		"chunk_index": index, "chunk_amount": amount, "chunk_size": MaxChunk,
	})
	if err != nil {
		panic(err)
	}
	return data
}

func send(t *testing.T, s *Set, key string, content []byte) {
	t.Helper()
	amount := max(1, (len(content)+MaxChunk-1)/MaxChunk)
	for i := range amount {
		if err := s.Chunk(request(key, i, amount, content[i*MaxChunk:min(len(content), (i+1)*MaxChunk)])); err != nil {
			t.Fatalf("chunk %d of %d: %v", i, amount, err)
		}
	}
}

func take(t *testing.T, s *Set, key string) []byte {
	t.Helper()
	f, size, err := s.Take(key)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p, err := io.ReadAll(f)
	if err != nil || int64(len(p)) != size {
		t.Fatalf("%d bytes were read of a file of %d: %v", len(p), size, err)
	}
	return p
}

// refused fails the test unless err is a ValueError that contains want.
func refused(t *testing.T, err error, want string) {
	t.Helper()
	var e *protocol.Error
	if !errors.As(err, &e) || e.Class != protocol.ValueError || !strings.Contains(e.Text, want) {
		t.Errorf("got %v, want a ValueError with %q", err, want)
	}
}

func TestFile(t *testing.T) {
	content := make([]byte, 2*MaxChunk+8232) // 41,000 bytes in 3 chunks
	for i := range content {
		content[i] = byte(i * 7)
	}
	for _, c := range [][]byte{content, content[:MaxChunk], content[:1], {}} {
		s := newSet(t)
		send(t, s, "0123456789abcdef-00000000000000000000000000000000.zip", c)
		if got := take(t, s, "0123456789abcdef-00000000000000000000000000000000.zip"); !bytes.Equal(got, c) {
			t.Errorf("%d bytes came back, or others than the %d that were sent", len(got), len(c))
		}
		_, _, err := s.Take("0123456789abcdef-00000000000000000000000000000000.zip")
		refused(t, err, "no such file")
	}
}

// Chunks are appended in the order of their arrival, whatever their number; number 0 starts over.
func TestArrivalOrder(t *testing.T) {
	s := newSet(t)
	for _, c := range []struct {
		index int
		text  string
	}{{0, "gone"}, {1, "too"}, {0, "a"}, {7, "b"}, {3, "c"}, {3, "d"}} {
		if err := s.Chunk(request("k", c.index, 8, []byte(c.text))); err != nil {
			t.Fatal(err)
		}
	}
	if got := take(t, s, "k"); string(got) != "abcd" {
		t.Errorf("got %q", got)
	}
}

func TestRefusedChunks(t *testing.T) {
	big := base64.StdEncoding.EncodeToString(make([]byte, MaxChunk+1))
	for name, c := range map[string]struct{ data, want string }{
		"empty key":         {`{"file_key":"","chunk_base64":"","chunk_index":0,"chunk_amount":1}`, "file_key"},
		"dots":              {`{"file_key":"a..b","chunk_base64":"","chunk_index":0,"chunk_amount":1}`, "file_key"},
		"slash":             {`{"file_key":"a/b","chunk_base64":"","chunk_index":0,"chunk_amount":1}`, "file_key"},
		"leading dot":       {`{"file_key":".a","chunk_base64":"","chunk_index":0,"chunk_amount":1}`, "file_key"},
		"line end":          {`{"file_key":"a\n","chunk_base64":"","chunk_index":0,"chunk_amount":1}`, "file_key"},
		"NUL":               {`{"file_key":"a\u0000","chunk_base64":"","chunk_index":0,"chunk_amount":1}`, "file_key"},
		"long key":          {`{"file_key":"` + strings.Repeat("a", 256) + `","chunk_base64":"","chunk_index":0,"chunk_amount":1}`, "file_key"},
		"key of other type": {`{"file_key":1,"chunk_base64":"","chunk_index":0,"chunk_amount":1}`, "file_key"},
		"not base64":        {`{"file_key":"k","chunk_base64":"????","chunk_index":0,"chunk_amount":1}`, "base64"},
		"no padding":        {`{"file_key":"k","chunk_base64":"YQ","chunk_index":0,"chunk_amount":1}`, "base64"},
		"bits behind":       {`{"file_key":"k","chunk_base64":"YR==","chunk_index":0,"chunk_amount":1}`, "base64"},
		"line end in it":    {`{"file_key":"k","chunk_base64":"YW\nFh","chunk_index":0,"chunk_amount":1}`, "base64"},
		"URL alphabet":      {`{"file_key":"k","chunk_base64":"-_-_","chunk_index":0,"chunk_amount":1}`, "base64"},
		"too many bytes":    {`{"file_key":"k","chunk_base64":"` + big + `","chunk_index":0,"chunk_amount":1}`, "are the most"},
		"too long":          {`{"file_key":"k","chunk_base64":"` + big + `AAAA","chunk_index":0,"chunk_amount":1}`, "are the most"},
		"index below":       {`{"file_key":"k","chunk_base64":"","chunk_index":-1,"chunk_amount":1}`, "chunk_index"},
		"index above":       {`{"file_key":"k","chunk_base64":"","chunk_index":1,"chunk_amount":1}`, "chunk_index"},
		"amount 0":          {`{"file_key":"k","chunk_base64":"","chunk_index":0,"chunk_amount":0}`, "chunk_index"},
		"index a bool":      {`{"file_key":"k","chunk_base64":"","chunk_index":false,"chunk_amount":1}`, "integer"},
		"index a string":    {`{"file_key":"k","chunk_base64":"","chunk_index":"0","chunk_amount":1}`, "integer"},
		"index null":        {`{"file_key":"k","chunk_base64":"","chunk_index":null,"chunk_amount":1}`, "integer"},
		"index no integer":  {`{"file_key":"k","chunk_base64":"","chunk_index":0.5,"chunk_amount":1}`, "integer"},
		"index enormous":    {`{"file_key":"k","chunk_base64":"","chunk_index":0,"chunk_amount":1e400}`, "integer"},
		"without the first": {`{"file_key":"k","chunk_base64":"","chunk_index":1,"chunk_amount":2}`, "chunk 0"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSet(t)
			refused(t, s.Chunk(json.RawMessage(c.data)), c.want)
			if len(s.files) != 0 || s.total != 0 {
				t.Errorf("%d files are kept", len(s.files))
			}
		})
	}
}

func TestMissingKeys(t *testing.T) {
	whole := map[string]any{"file_key": "k", "chunk_base64": "", "chunk_index": 0, "chunk_amount": 1}
	for key := range whole {
		data, _ := json.Marshal(whole)
		s := newSet(t)
		if err := s.Chunk(data); err != nil {
			t.Fatal(err)
		}
		part := map[string]any{}
		for k, v := range whole {
			if k != key {
				part[k] = v
			}
		}
		data, _ = json.Marshal(part)
		var e *protocol.Error
		if err := s.Chunk(data); !errors.As(err, &e) || e.Class != protocol.KeyError {
			t.Errorf("without %s: %v, want a KeyError", key, err)
		}
	}
}

// A file that grows too long is deleted, and its space is free again.
func TestTooLong(t *testing.T) {
	s := newSet(t)
	whole := make([]byte, limit/MaxChunk*MaxChunk)
	send(t, s, "k", whole)
	refused(t, s.Chunk(request("k", 6, 8, make([]byte, limit-len(whole)+1))), "exceeds 100000 bytes")
	if _, _, err := s.Take("k"); err == nil {
		t.Error("a file of which a chunk was refused was handed out")
	}
	if s.total != 0 {
		t.Errorf("%d bytes are counted of no file", s.total)
	}
	send(t, s, "k", make([]byte, limit))
	if got := take(t, s, "k"); len(got) != limit {
		t.Errorf("got %d bytes", len(got))
	}
}

func TestBounds(t *testing.T) {
	s := newSet(t)
	for i := range MaxOpen {
		send(t, s, fmt.Sprint("k", i), []byte("x"))
	}
	refused(t, s.Chunk(request("one-more", 0, 1, nil)), "128 files")
	send(t, s, "k0", []byte("again")) // not an additional file
	take(t, s, "k0")
	send(t, s, "one-more", nil)

	s = newSet(t)
	for i := range MaxFull {
		send(t, s, fmt.Sprint("k", i), make([]byte, limit))
	}
	refused(t, s.Chunk(request("one-more", 0, 1, []byte("x"))), "exceed 800000 bytes")
	take(t, s, "k0")
	send(t, s, "one-more", []byte("x"))
}

// Nothing is ever seen in the directory, and after Close nothing is open (TestMain).
func TestUnlinked(t *testing.T) {
	dir := t.TempDir()
	s := NewSet(dir, limit, NewPool(math.MaxInt64))
	send(t, s, "k", []byte("x"))
	if names, err := os.ReadDir(dir); err != nil || len(names) != 0 {
		t.Errorf("there is %v in the directory: %v", names, err)
	}
	s.Close()
	s.Close()
	refused(t, s.Chunk(request("k", 0, 1, nil)), "closed")
	_, _, err := s.Take("k")
	refused(t, err, "no such file")
}

func TestNoDirectory(t *testing.T) {
	s := NewSet(t.TempDir()+"/missing", limit, NewPool(math.MaxInt64))
	defer s.Close()
	if err := s.Chunk(request("k", 0, 1, nil)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

// Chunks of many files at once, with a Close in between, as when a connection breaks.
func TestConcurrent(t *testing.T) {
	s := newSet(t)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for n := range 50 {
				key := fmt.Sprint("k", i)
				if err := s.Chunk(request(key, n%2, 2, []byte("x"))); err != nil && !strings.Contains(err.Error(), "closed") && !strings.Contains(err.Error(), "chunk 0") {
					t.Error(err)
				}
				if n%7 == 0 {
					if f, _, err := s.Take(key); err == nil {
						f.Close()
					}
				}
				if i == 0 && n == 40 {
					s.Close()
				}
			}
		})
	}
	wg.Wait()
}

func FuzzChunk(f *testing.F) {
	f.Add([]byte(request("k", 0, 1, []byte("abc"))))
	f.Add([]byte(`{"file_key":"a..b","chunk_base64":"YQ==","chunk_index":1e0,"chunk_amount":2}`))
	f.Add([]byte(`[]`))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte) {
		s := NewSet(dir, limit, NewPool(math.MaxInt64))
		defer s.Close()
		if s.Chunk(data) != nil {
			return
		}
		if len(s.files) != 1 {
			t.Fatalf("%d files of one chunk", len(s.files))
		}
		for key, file := range s.files {
			if checkKey(key) != nil || file.size > MaxChunk {
				t.Errorf("key %q, %d bytes", key, file.size)
			}
		}
	})
}

// The sets of a pool share its bytes, and return them whatever happens to a file.
func TestPool(t *testing.T) {
	pool := NewPool(2*limit + 100)
	one, two := NewSet(t.TempDir(), limit, pool), NewSet(t.TempDir(), limit, pool)
	t.Cleanup(one.Close)
	t.Cleanup(two.Close)
	full := make([]byte, limit)
	for i, giveBack := range []func(){
		func() { take(t, one, "a") },
		func() { one.Chunk(request("a", 0, 1, nil)) },             // starts it over
		func() { one.Chunk(request("a", 1, 2, full[:MaxChunk])) }, // exceeds the limit, so it is deleted
		one.Close,
	} {
		send(t, one, "a", full)
		send(t, two, "b", full)
		if err := two.Chunk(request("c", 0, 1, full[:101])); err == nil || !strings.Contains(err.Error(), "on all connections") {
			t.Errorf("%d: got %v", i, err)
		}
		giveBack()
		send(t, two, "c", full)
		take(t, two, "b")
		take(t, two, "c")
		if used := pool.used.Load(); used != 0 {
			t.Errorf("%d: %d bytes are in use", i, used)
		}
	}
}
