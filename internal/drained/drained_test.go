package drained

import (
	"bytes"
	"io"
	"os"
	"strings"
	"testing"
	"time"
)

// slowly passes a write on for each token, and all once the gate is closed.
type slowly struct {
	w    io.Writer
	gate chan struct{}
}

func (s slowly) Write(b []byte) (int, error) {
	<-s.gate
	return s.w.Write(b)
}

// The bytes that are in the pipe at the cut all arrive; bytes written later do not, whether
// the copy uses Read or WriteTo.
func TestDrainedAfterCut(t *testing.T) {
	for name, copyTo := range map[string]func(io.Writer, *Reader) (int64, error){
		"WriteTo": func(w io.Writer, d *Reader) (int64, error) { return d.WriteTo(w) },
		"Read":    func(w io.Writer, d *Reader) (int64, error) { return io.Copy(w, struct{ io.Reader }{d}) },
	} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		defer w.Close()
		before := strings.Repeat("before", 5000)
		if _, err := w.WriteString(before); err != nil {
			t.Fatal(err)
		}
		var got bytes.Buffer
		slow := slowly{&got, make(chan struct{})}
		d := &Reader{File: r}
		done := make(chan error)
		go func() {
			_, err := copyTo(slow, d)
			done <- err
		}()
		slow.gate <- struct{}{} // the first part is on its way
		if err := r.SetReadDeadline(time.Unix(1, 0)); err != nil {
			t.Fatal(err)
		}
		close(slow.gate)
		if err := <-done; err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if !d.Incomplete() {
			t.Errorf("%s: complete, while somebody can write", name)
		}
		if got.String() != before {
			t.Errorf("%s: %d bytes, want %d", name, got.Len(), len(before))
		}
		if _, err := w.WriteString("after"); err != nil {
			t.Fatal(err)
		}
		if n, err := d.Read(make([]byte, 8)); n != 0 || err != io.EOF {
			t.Errorf("%s: %d bytes and %v after the end", name, n, err)
		}
		w.Close()
		if !d.Incomplete() {
			t.Errorf("%s: complete, with bytes that were not read", name)
		}
	}
}

// What nobody can add to is complete, even if it was cut.
func TestComplete(t *testing.T) {
	for _, cut := range []bool{false, true} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if _, err := w.WriteString("all"); err != nil {
			t.Fatal(err)
		}
		w.Close()
		if cut {
			if err := r.SetReadDeadline(time.Unix(1, 0)); err != nil {
				t.Fatal(err)
			}
		}
		var got bytes.Buffer
		d := &Reader{File: r}
		if _, err := io.Copy(&got, d); err != nil || got.String() != "all" || d.Incomplete() {
			t.Errorf("cut: %v: %q, %v, incomplete: %v", cut, &got, err, d.Incomplete())
		}
	}
}
