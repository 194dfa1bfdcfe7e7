package unpack

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/boxd/boxd/agent/unpack/proto"
	"github.com/klauspost/compress/zstd"
)

func gzipped(t testing.TB, parts ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	for _, p := range parts {
		w := gzip.NewWriter(&b)
		io.WriteString(w, p)
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}

func zstded(t testing.TB, parts ...string) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	var b []byte
	for _, p := range parts {
		b = w.EncodeAll([]byte(p), b)
	}
	return b
}

func TestInflate(t *testing.T) {
	long := strings.Repeat("0123456789abcdef", streamBuffer/8)
	skipped := append([]byte{0x50, 0x2a, 0x4d, 0x18, 2, 0, 0, 0, 'h', 'i'}, zstded(t, "after")...)
	for _, c := range []struct {
		name string
		in   []byte
		want string
	}{
		{"nothing", nil, ""},
		{"a byte", []byte("x"), "x"},
		{"plain", []byte(long), long},
		{"gzip", gzipped(t, long), long},
		{"empty gzip", gzipped(t, ""), ""},
		{"members of gzip", gzipped(t, "a", long, "", "b"), "a" + long + "b"},
		{"zstd", zstded(t, long), long},
		{"frames of zstd", zstded(t, "a", long, "", "b"), "a" + long + "b"},
		{"a frame to skip", skipped, "after"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out bytes.Buffer
			if err := inflate(&out, iotest.HalfReader(bytes.NewReader(c.in)), int64(len(long)+2)); err != nil {
				t.Fatal(err)
			}
			if out.String() != c.want {
				t.Errorf("%d bytes, want %d", out.Len(), len(c.want))
			}
		})
	}
}

func TestInflateRefuses(t *testing.T) {
	flipped := gzipped(t, "some text that is long enough")
	flipped[len(flipped)-8] ^= 1                                       // of the checksum
	window := append([]byte{0x28, 0xb5, 0x2f, 0xfd, 0, 0x98}, 1, 0, 0) // 512 MiB (RFC 8878, section 3.1.1.1.2)
	for _, c := range []struct {
		name   string
		in     []byte
		status int
	}{
		{"truncated gzip", gzipped(t, "some text")[:15], proto.Corrupt},
		{"truncated header of gzip", gzipped(t, "some text")[:5], proto.Corrupt},
		{"truncated second member", append(gzipped(t, "some text"), gzipped(t, "more")[:12]...), proto.Corrupt},
		{"checksum of gzip", flipped, proto.Corrupt},
		{"garbage after gzip", append(gzipped(t, "some text"), "garbage"...), proto.Corrupt},
		{"zeros after gzip", append(gzipped(t, "some text"), make([]byte, 512)...), proto.Corrupt},
		{"truncated zstd", zstded(t, "some text")[:12], proto.Corrupt},
		{"garbage after zstd", append(zstded(t, "some text"), "garbage"...), proto.Corrupt},
		{"window of zstd", window, proto.Corrupt},
		{"plain bomb", make([]byte, 1<<20+1), proto.Refused},
		{"gzip bomb", gzipped(t, strings.Repeat("\x00", 64<<20)), proto.Refused},
		{"zstd bomb", zstded(t, strings.Repeat("\x00", 64<<20)), proto.Refused},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out bytes.Buffer
			err := inflate(&out, bytes.NewReader(c.in), 1<<20)
			checkError(t, err, c.status, "archive")
			if out.Len() > 1<<20 {
				t.Errorf("%d bytes were written, more than the limit", out.Len())
			}
		})
	}
}

// TestInflateStreams: what fails besides the archive is not the archive's fault.
func TestInflateStreams(t *testing.T) {
	broken := errors.New("broken")
	for name, in := range map[string][]byte{"plain": []byte("some text"), "gzip": gzipped(t, "some text"), "zstd": zstded(t, "some text")} {
		err := inflate(io.Discard, io.MultiReader(bytes.NewReader(in[:len(in)-2]), iotest.ErrReader(broken)), 1<<20)
		if !errors.Is(err, broken) || status(err) != proto.Failed {
			t.Errorf("%s: a reader that fails: error %v with status %d", name, err, status(err))
		}
	}
}
