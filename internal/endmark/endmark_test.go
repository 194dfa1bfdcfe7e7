package endmark

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
)

// readAll reads an archive to its end.
func readAll(in io.Reader) error {
	for r := tar.NewReader(in); ; {
		_, err := r.Next()
		if err == nil {
			_, err = io.Copy(io.Discard, r)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func TestReader(t *testing.T) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	ends := map[int]bool{0: true} // where a member can begin
	for _, h := range []tar.Header{
		{Name: "dir/", Typeflag: tar.TypeDir},
		{Name: "zeros", Typeflag: tar.TypeReg, Size: 2 * block},
		{Name: strings.Repeat("long/", 60) + "file", Typeflag: tar.TypeReg, Size: 700, Format: tar.FormatPAX},
	} {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(make([]byte, h.Size)); err != nil {
			t.Fatal(err)
		}
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
		ends[b.Len()] = true
	}
	members := b.Len()
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for n := range b.Len() + 1 {
		err := readAll(Reader(bytes.NewReader(b.Bytes()[:n])))
		whole := n >= members+block
		if whole != (err == nil) || ends[n] && !errors.Is(err, ErrCut) {
			t.Errorf("%d bytes of %d, members end at %d: %v", n, b.Len(), members, err)
		}
	}
	b.Write(make([]byte, 20*block)) // GNU tar fills its last record
	if err := readAll(Reader(&b)); err != nil {
		t.Error(err)
	}
}
