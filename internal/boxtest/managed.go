package boxtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/boxd/boxd/engine"
)

// Live is what these tests need of a box of either kind of engine.
type Live interface {
	engine.Box
	Launch(context.Context, engine.Managed) (engine.ManagedProcess, error)
	Managed() []engine.ManagedProcess
}

// Launch starts a managed process, which is killed and forgotten with the test.
func Launch(t testing.TB, b Live, m engine.Managed) engine.ManagedProcess {
	t.Helper()
	p, err := b.Launch(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func ManagedShell(key, script string) engine.Managed {
	return engine.Managed{Key: key, Args: []string{"/bin/sh", "-c", script}}
}

func ManagedPython(key, script string) engine.Managed {
	return engine.Managed{Key: key, Args: []string{"/usr/bin/python3", "-c", script}}
}

func Patient(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	t.Cleanup(cancel)
	return ctx
}

// Reader reads an output as a stream, and releases what it has read.
type Reader struct {
	t   testing.TB
	ctx context.Context
	out engine.Output
	off int64
}

// NewReader returns a reader of out from its first byte.
func NewReader(t testing.TB, out engine.Output) *Reader {
	return &Reader{t: t, ctx: Patient(t), out: out}
}

func (r *Reader) Read(p []byte) (int, error) {
	n, at, err := r.out.ReadAt(r.ctx, p, r.off)
	if n > 0 && at != r.off {
		r.t.Errorf("bytes %d to %d are gone", r.off, at)
	}
	r.off = at + int64(n)
	r.out.Release(r.off)
	return n, err
}

func ReadAll(t testing.TB, out engine.Output) string {
	t.Helper()
	b, err := io.ReadAll(NewReader(t, out))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func Await(t testing.TB, p engine.ManagedProcess) engine.Result {
	t.Helper()
	select {
	case <-p.Done():
	case <-time.After(Patience):
		t.Fatalf("process %q does not end", p.Key())
	}
	return p.Result()
}

func WantManaged(t testing.TB, p engine.ManagedProcess, verdict engine.Verdict, code int) engine.Result {
	t.Helper()
	r := Await(t, p)
	if r.Verdict != verdict || r.ExitCode != code {
		t.Errorf("%q: %s, code %d; want %s, %d (%+v)", p.Key(), r.Verdict, r.ExitCode, verdict, code, r)
	}
	return r
}

// Numbered returns the first size bytes that Writer100MB writes.
func Numbered(size int) []byte {
	var block bytes.Buffer
	for i := range 1 << 13 {
		fmt.Fprintf(&block, "%08d", i)
	}
	return bytes.Repeat(block.Bytes(), size/block.Len()+1)[:size]
}

const Writer100MB = `
import os
block = b"".join(b"%08d" % i for i in range(1 << 13))
left = 100 << 20
while left:
    n = os.write(1, block[:min(left, len(block))])
    # what was not taken comes again, so that the stream is one long count
    block = block[n:] + block[:n]
    left -= n
`

// GoOn gives a managed process the line that it waits for, and ends its input.
func GoOn(t testing.TB, p engine.ManagedProcess) {
	t.Helper()
	in := p.Stdio().Stdin
	if err := errors.Join(in.Write(Patient(t), 0, []byte("\n")), in.Close(Patient(t))); err != nil {
		t.Fatal(err)
	}
}

func WantVerdict(t testing.TB, p engine.ManagedProcess, verdict engine.Verdict, limit string) {
	t.Helper()
	r := Await(t, p)
	if r.Verdict != verdict || r.Limit != limit {
		t.Errorf("%q: %s, limit %q; want %s, %q (%+v)", p.Key(), r.Verdict, r.Limit, verdict, limit, r)
	}
}
