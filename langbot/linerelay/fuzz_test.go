package linerelay

import (
	"bytes"
	"io"
	"net"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/boxd/boxd/internal/testutil"
)

// FuzzClient sends arbitrary bytes after the upgrade: the process gets whole messages or
// nothing, the connection ends when it is closed, and the next client is served.
func FuzzClient(f *testing.F) {
	frame := func(opcode byte, text string) []byte {
		return append([]byte{opcode, 0x80 | byte(len(text)), 0, 0, 0, 0}, text...)
	}
	f.Add(frame(0x81, "hello"))
	f.Add(append(frame(0x01, "he"), frame(0x80, "llo")...))
	f.Add(append(frame(0x89, "ping"), frame(0x82, "binary")...))
	f.Add(append(frame(0x81, "x"), frame(0x88, "\x03\xe8")...))
	f.Add(frame(0x81, "\xff"))
	f.Add([]byte("\x81\xff\x7f\xff\xff\xff\xff\xff\xff\xff\x00\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		p := newProc(4 << 10)
		s := serve(t, p, func(o *times) { o.linger = 10 * time.Millisecond })
		conn, err := net.Dial("tcp", strings.TrimPrefix(s.http.URL, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		io.WriteString(conn, "GET / HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n")
		answer := make([]byte, 4096)
		n, err := conn.Read(answer)
		if err != nil || !bytes.HasSuffix(answer[:n], []byte("\r\n\r\n")) {
			t.Fatalf("answer %q, %v", answer[:n], err)
		}
		conn.Write(data)
		conn.(*net.TCPConn).CloseWrite()
		conn.SetReadDeadline(time.Now().Add(testutil.Patience()))
		if _, err := io.Copy(io.Discard, conn); err != nil && !strings.Contains(err.Error(), "reset") {
			t.Fatalf("the connection does not end: %v", err)
		}
		p.out.print("x\n")
		c := s.dial()
		c.wantMessages("x\n")
		c.send("end")
		await(t, "stdin", func() bool { return strings.HasSuffix(p.in.text(), "end\n") })
		if text := p.in.text(); !utf8.ValidString(text) || text != "end\n" && !strings.HasSuffix(text, "\nend\n") {
			t.Errorf("the process has read %q", text)
		}
		c.Close()
	})
}
