package api

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/policy"
)

func zipped(t testing.TB, r io.Reader) string {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := io.Copy(w, r)
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// Archives are compressed if the client asks for it, both ways; what they expand to is bounded.
func TestGzip(t *testing.T) {
	f := serve(t, func(o *Options, _ *policy.Config) { o.MaxTree = 1 << 20 })
	ensure(t, f.client(), "a")
	dir := t.TempDir()
	growTree(t, dir, "from/a "+strings.Repeat("A", 9000), "to/")
	const path = "/v1/sessions/a/files/tar?path="
	for header, want := range map[string]string{"": "", "identity": "", "gzip": "gzip", "br, GZIP;q=0.5": "gzip", "gzip;q=0": "", "gzip;q=x": ""} {
		resp, body := f.raw("GET", path+dir+"/from", adminToken, "", "Accept-Encoding", header)
		if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Encoding") != want || resp.Header.Get("Vary") != "Accept-Encoding" {
			t.Fatalf("%q: %+v", header, resp)
		}
		var r io.Reader = bytes.NewReader(body)
		if want != "" {
			z, err := gzip.NewReader(r)
			if err != nil || len(body) > 500 {
				t.Fatalf("%d bytes, %v", len(body), err)
			}
			r = z
		}
		if got := entriesOf(t, r); got != "a 640 "+strings.Repeat("A", 9000) {
			t.Errorf("%q: %.100s", header, got)
		}
	}
	if p := f.problem("GET", path+dir+"/none", adminToken, "", "Accept-Encoding", "gzip"); p.Code != apitypes.CodeNoFile {
		t.Errorf("%+v", p)
	}
	archive := func(size int64) io.Reader {
		return tarOf(t, &tar.Header{Name: "f", Typeflag: tar.TypeReg, Size: size, Mode: 0o600})
	}
	small, bomb := zipped(t, archive(3000)), zipped(t, archive(2<<20))
	if len(bomb) > 10000 {
		t.Fatalf("%d bytes", len(bomb))
	}
	if resp, body := f.raw("PUT", path+dir+"/to", adminToken, small, "Content-Encoding", "gzip"); resp.StatusCode != http.StatusOK {
		t.Errorf("%s", body)
	}
	if info, err := os.Stat(dir + "/to/f"); err != nil || info.Size() != 3000 {
		t.Errorf("%+v, %v", info, err)
	}
	damaged := []byte(small)
	damaged[len(damaged)-6] ^= 1 // of the checksum
	for what, c := range map[string]struct{ encoding, body, code, text string }{
		"bomb":    {"gzip", bomb, apitypes.CodeFileTooLarge, "more than 1 MiB"},
		"damaged": {"gzip", string(damaged), apitypes.CodeInvalid, "compressed with gzip"},
		"cut":     {"gzip", small[:len(small)-9], apitypes.CodeInvalid, "compressed with gzip"},
		"plain":   {"gzip", "no gzip at all", apitypes.CodeInvalid, "compressed with gzip"},
		"empty":   {"gzip", "", apitypes.CodeInvalid, "compressed with gzip"},
		"untold":  {"", small, apitypes.CodeInvalid, "Content-Encoding: gzip"},
		"other":   {"br", small, apitypes.CodeMediaType, "must be gzip"},
	} {
		p := f.problem("PUT", path+dir+"/to", adminToken, c.body, "Content-Encoding", c.encoding)
		if p.Code != c.code || !strings.Contains(p.Detail, c.text) {
			t.Errorf("%s: %+v", what, p)
		}
	}
}

// A body that expands very much is refused, however large the tree may be.
func TestGzipExpansion(t *testing.T) {
	body := zipped(t, io.LimitReader(zeros{}, freeExpansion+20<<20))
	n, err := io.Copy(io.Discard, &gzipReader{body: strings.NewReader(body)})
	if !errors.Is(err, engine.ErrInvalid) || !strings.Contains(err.Error(), "expands more than 100 times") || n > freeExpansion+100*int64(len(body)) {
		t.Errorf("%d of %d bytes, %v", n, len(body), err)
	}
	small := zipped(t, io.LimitReader(zeros{}, freeExpansion))
	if n, err := io.Copy(io.Discard, &gzipReader{body: strings.NewReader(small)}); n != freeExpansion || err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
}

// FuzzGzip: whatever is sent is content as compress/gzip has it, or the client's fault.
func FuzzGzip(f *testing.F) {
	f.Add([]byte(zipped(f, strings.NewReader("text"))))
	f.Add([]byte("\x1f\x8b"))
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := io.ReadAll(io.LimitReader(&gzipReader{body: bytes.NewReader(body)}, 1<<16))
		if err != nil && !errors.Is(err, engine.ErrInvalid) {
			t.Errorf("%v", err)
		}
		z, e := gzip.NewReader(bytes.NewReader(body))
		var want []byte
		if e == nil {
			want, e = io.ReadAll(io.LimitReader(z, 1<<16))
		}
		if (e == nil) != (err == nil) || err == nil && !bytes.Equal(got, want) {
			t.Errorf("%q, %v, want %q, %v", got, err, want, e)
		}
	})
}
