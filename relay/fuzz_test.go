package relay

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"testing"
	"time"
)

// FuzzServerFrame sends a live relay the messages of a hostile writer. The relay must accept
// them or end the connection with one of its own close codes, and must never pass anything
// to the process that was not sent.
func FuzzServerFrame(f *testing.F) {
	one := func(msgs ...[]byte) []byte {
		var b []byte
		for _, m := range msgs {
			b = append(binary.BigEndian.AppendUint16(b, uint16(len(m))), m...)
		}
		return b
	}
	f.Add(true, one(frame(typeStdin, be64(0), []byte("x")), frame(typeCloseStdin, be64(1))))
	f.Add(true, one(frame(typeStdin, be64(0), []byte("xyz")), frame(typeStdin, be64(1), []byte("yzz"))))
	f.Add(true, one(frame(typeAck, []byte{1}, be64(5)), frame(typeAck, []byte{2}, be64(0))))
	f.Add(true, one(frame(typeResize, []byte{0, 24, 0, 80}), frame(typeSignal, []byte{64})))
	f.Add(false, one(frame(typeSignal, []byte{0}), nil, frame(typeStdin, be64(1<<63))))
	codes := []int{1000, 1002, 1003, 1008, 1009, 1011, 1012}
	f.Fuzz(func(t *testing.T, write bool, script []byte) {
		p := newProc(4 << 10)
		p.out.Write([]byte("hello"))
		h, l, stop := servePipe(p, Options{StdinWindow: 4 << 10, Linger: 100 * time.Millisecond})
		defer stop()
		c, err := Dial(t.Context(), DialOptions{URL: "ws://pipe/", NetDial: l.dial, Write: write})
		if err != nil {
			t.Fatal(err)
		}
		defer c.ws.Close()
		ended := make(chan *collected, 1)
		go func() { ended <- collect(c) }()
		for len(script) >= 2 {
			n := min(int(binary.BigEndian.Uint16(script)), len(script)-2)
			if c.send(script[2:2+n]) != nil {
				break
			}
			script = script[2+n:]
		}
		h.Close()
		got := <-ended
		var closed *CloseError
		switch {
		case errors.As(got.err, &closed) && !slices.Contains(codes, closed.Code):
			t.Errorf("close code %d", closed.Code)
		case len(got.exit) > 0:
			t.Errorf("invented an exit: %v", got.exit)
		case !write && (p.in.n > 0 || p.in.closed > 0 || p.signals != nil || p.sizes != nil):
			t.Error("an observer reached the process")
		}
	})
}

// FuzzClientFrame parses the messages of a hostile relay: encoding the result of an accepted
// message gives the same message.
func FuzzClientFrame(f *testing.F) {
	for _, msg := range [][]byte{
		appendHello(nil, Hello{Writer: true, TTY: true, StdinWindow: 1, Window: 1, Stdout: Bounds{1, 3, 2}}),
		data(Stdout, 5, []byte("x")), appendGap(nil, Gap{Stderr, 1, 2}), appendStdinState(nil, StdinState{5, true}),
		{typeWriter, 1}, append([]byte{typeRefused}, "why"...),
		appendExit(nil, exitFrame{Exit{-1, 9, "oom", "memory"}, 1, 2}),
	} {
		f.Add(msg)
	}
	f.Fuzz(func(t *testing.T, msg []byte) {
		got, err := parseServer(msg)
		if err != nil {
			if !errors.Is(err, ErrProtocol) {
				t.Errorf("%v is no protocol error", err)
			}
			return
		}
		var again []byte
		switch v := got.(type) {
		case Hello:
			again = appendHello(nil, v)
		case Data:
			again = data(v.Stream, uint64(v.Offset), v.Bytes)
		case Gap:
			again = appendGap(nil, v)
		case StdinState:
			again = appendStdinState(nil, v)
		case exitFrame:
			again = appendExit(nil, v)
		case WriterChanged:
			again = []byte{typeWriter, 0}
			if v.Writer {
				again[1] = 1
			}
		case Refused:
			again = append([]byte{typeRefused}, v.Reason...)
		}
		if !bytes.Equal(again, msg) {
			t.Errorf("%x became %#v, which is %x", msg, got, again)
		}
	})
}

// FuzzClientLive sends a live client a message after a Hello.
func FuzzClientLive(f *testing.F) {
	f.Add(data(Stdout, 0, []byte("x")))
	f.Add(appendExit(nil, exitFrame{Exit: Exit{Code: 0}}))
	f.Fuzz(func(t *testing.T, msg []byte) {
		c := &Client{hello: Hello{HasStdin: true, Writer: true, StdinWindow: 1, Window: 1}, moved: make(chan struct{})}
		got, err := parseServer(msg)
		if err != nil {
			return
		}
		switch v := got.(type) {
		case Data:
			err = c.forward(v.Stream, v.Offset, v.Offset+int64(len(v.Bytes)))
		case Gap:
			err = c.forward(v.Stream, v.From, v.To)
		case StdinState:
			err = c.stdinState(v)
		case exitFrame:
			_, err = c.exited(v)
		}
		if err == nil && (c.streams[Stdout].next < 0 || c.streams[Stderr].next != 0 || c.stdin.Accepted != 0) {
			t.Errorf("%#v was believed", got)
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, q := range []string{"since=1,2&mode=write&takeover=1", "since=end&since_stderr=5", "client=0123456789abcdef&ack=1", "since=,"} {
		f.Add(q)
	}
	f.Fuzz(func(t *testing.T, query string) {
		r, err := parseRequest(query)
		if err != nil {
			return
		}
		if r.since.Stdout.Offset < 0 || r.since.Stderr.Offset < 0 {
			t.Errorf("negative: %+v", r)
		}
		if again, err := parseRequest(r.query().Encode()); err != nil || again.since != r.since || again.client != r.client || again.write != r.write {
			t.Errorf("%q: %+v became %+v, %v", query, r, again, err)
		}
	})
}
