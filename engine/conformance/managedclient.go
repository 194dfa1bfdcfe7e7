package conformance

import (
	"bytes"
	"context"
	"io"
	"testing"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/boxtest"
)

// Clients come and go in the middle of input and output. Every byte arrives once, and the process stays the
// same.
func (e *suite) managedOutlivesClients(t testing.TB) {
	s := e.private(t)
	b := s.create(t, engine.Spec{})
	m := boxtest.ManagedShell("echo", "cat; exit 3")
	m.History = 64 << 10
	p := boxtest.Launch(t, b, m)
	pid, data := p.Control().PID(), boxtest.Numbered(8<<20)
	var read int64
	for round := 0; read < int64(len(data)); round++ {
		in, out := p.Stdio().Stdin, p.Stdio().Stdout
		writing := make(chan struct{})
		go func() {
			defer close(writing)
			for off := in.Accepted(); off < int64(len(data)); off = in.Accepted() {
				if in.Write(t.Context(), off, data[off:min(off+100_000, int64(len(data)))]) != nil {
					return // its client is gone
				}
			}
			_ = in.Close(t.Context())
		}()
		// A client that continues to read releases what was read before: the last releases may have been lost with the
		// previous client.
		out.Release(read)
		buf := make([]byte, 30_000)
		for until := read + 700_000; read < min(until, int64(len(data))); {
			n, at, err := out.ReadAt(boxtest.Patient(t), buf, read)
			if err != nil || at != read || !bytes.Equal(buf[:n], data[at:at+int64(n)]) {
				t.Fatalf("round %d: %d bytes at %d after %d, %v", round, n, at, read, err)
			}
			read += int64(n)
			out.Release(read)
		}
		s.disconnect(t)
		<-writing
		if _, _, err := out.ReadAt(boxtest.Patient(t), buf, read); err == nil || err == io.EOF {
			t.Errorf("reading after the client has let go: %v", err)
		}
		if round%3 == 1 {
			s.KillLauncher(t)
		}
		s.connect(t)
		b = s.adopt(t, b.ID())
		if round%3 == 2 {
			s.KillLauncher(t) // and with it nothing that matters to a stream
		}
		if got := b.Managed(); len(got) != 1 || got[0].Key() != "echo" || got[0].Control().PID() != pid {
			t.Fatalf("round %d: %v", round, got)
		}
		p = b.Managed()[0]
	}
	ctx := boxtest.Patient(t)
	if err := p.Stdio().Stdin.Close(ctx); err != nil {
		t.Error(err)
	}
	if n, _, err := p.Stdio().Stdout.ReadAt(ctx, make([]byte, 1), read); n != 0 || err != io.EOF {
		t.Errorf("%d bytes too many, %v", n, err)
	}
	r := boxtest.WantManaged(t, p, engine.Exited, 3)
	if r.Receipt.User == nil || r.Receipt.Wall <= 0 {
		t.Errorf("%+v", r.Receipt)
	}
	if err := p.Forget(ctx); err != nil {
		t.Error(err)
	}
	if _, err := b.Launch(ctx, m); err == nil {
		t.Error("a key was taken twice")
	}
	s.disconnect(t)
	s.connect(t)
	if b = s.adopt(t, b.ID()); len(b.Managed()) != 0 {
		t.Errorf("%v", b.Managed())
	}
}

// A process that ends while there is no client is found later with its result, its terminal, its signals and its
// resource use.
func (e *suite) managedEndsAlone(t testing.TB) {
	s := e.private(t)
	b := s.create(t, engine.Spec{})
	exits := boxtest.ManagedShell("exits", "echo words; read x; echo more $x; exit 7")
	atTTY := boxtest.ManagedShell("tty", "stty size; read x; stty size; kill -USR1 $$")
	atTTY.TTY = &engine.WindowSize{Rows: 24, Cols: 80}
	p, q := boxtest.Launch(t, b, exits), boxtest.Launch(t, b, atTTY)
	// The whole first line: the terminal echoes what it gets at once.
	for p, line := range map[engine.ManagedProcess]string{p: "words\n", q: "24 80\r\n"} {
		if _, _, err := p.Stdio().Stdout.ReadAt(boxtest.Patient(t), make([]byte, 1), int64(len(line)-1)); err != nil {
			t.Fatal(err)
		}
	}
	if err := q.Control().Resize(engine.WindowSize{Rows: 10, Cols: 20}); err != nil {
		t.Fatal(err)
	}
	// They get their line and this client is gone before anything comes of it.
	ctx, cancel := context.WithCancel(t.Context())
	for _, p := range []engine.ManagedProcess{p, q} {
		if err := p.Stdio().Stdin.Write(ctx, 0, []byte("now\n")); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	s.disconnect(t)
	s.connect(t)
	b = s.adopt(t, b.ID())
	got := b.Managed()
	if len(got) != 2 {
		t.Fatalf("%v", got)
	}
	p, q = got[0], got[1]
	boxtest.WantManaged(t, p, engine.Exited, 7)
	boxtest.WantManaged(t, q, engine.Signaled, -1)
	if out := boxtest.ReadAll(t, p.Stdio().Stdout); out != "words\nmore now\n" {
		t.Errorf("%q", out)
	}
	if out := boxtest.ReadAll(t, q.Stdio().Stdout); out != "24 80\r\nnow\r\n10 20\r\n" {
		t.Errorf("%q", out)
	}
}
