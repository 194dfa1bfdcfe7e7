package door

import (
	"bufio"
	"bytes"
	"compress/flate"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/internal/testutil"
)

// raw is a client that assembles its own frames.
type raw struct {
	t *testing.T
	net.Conn
	r    *bufio.Reader
	resp *http.Response
}

// dialRaw sends a request with these headers and reads the answer.
func dialRaw(t *testing.T, addr, path string, kv ...string) *raw {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(testutil.Patience()))
	h := headers("Host", addr)
	if path == "/rpc/ws" && len(kv) == 0 {
		kv = upgradeHeaders
	}
	for i := 0; i < len(kv); i += 2 {
		h.Set(kv[i], kv[i+1])
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "GET %s HTTP/1.1\r\n", path)
	h.Write(&b)
	b.WriteString("\r\n")
	if _, err := c.Write(b.Bytes()); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(c)
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	return &raw{t, c, r, resp}
}

var upgradeHeaders = []string{"Upgrade", "websocket", "Connection", "Upgrade", "Sec-WebSocket-Key", "mU9tELqwup70UkB3oGfzCg==", "Sec-WebSocket-Version", "13",
	"Sec-WebSocket-Extensions", "permessage-deflate; client_max_window_bits", instanceHeader, "i"}

// frame returns a frame with a mask. first contains FIN, RSV and the opcode.
func frame(first byte, payload []byte) []byte {
	b := head(first, uint64(len(payload)))
	mask := b[len(b)-4:]
	for i, c := range payload {
		b = append(b, c^mask[i%4])
	}
	return b
}

// head returns the header of a frame that announces n bytes.
func head(first byte, n uint64) []byte {
	b := []byte{first}
	switch {
	case n < 126:
		b = append(b, 0x80|byte(n))
	case n < 1<<16:
		b = binary.BigEndian.AppendUint16(append(b, 0x80|126), uint16(n))
	default:
		b = binary.BigEndian.AppendUint64(append(b, 0x80|127), n)
	}
	return append(b, 1, 2, 3, 4)
}

// deflated returns a compressed message (RFC 7692, 7.2.1).
func deflated(msg []byte) []byte {
	var b bytes.Buffer
	w, _ := flate.NewWriter(&b, flate.BestSpeed)
	w.Write(msg)
	w.Flush()
	return bytes.TrimSuffix(b.Bytes(), []byte{0, 0, 0xff, 0xff})
}

func (c *raw) write(frames ...[]byte) {
	c.t.Helper()
	if _, err := c.Write(bytes.Join(frames, nil)); err != nil {
		c.t.Fatal(err)
	}
}

// read returns the next frame.
func (c *raw) read() (first byte, payload []byte) {
	c.t.Helper()
	first, payload, ok := c.try()
	if !ok {
		c.t.Fatal("the stream ends before a frame does")
	}
	return first, payload
}

// try returns the next frame, if there is one.
func (c *raw) try() (first byte, payload []byte, ok bool) {
	var h [2]byte
	if _, err := io.ReadFull(c.r, h[:]); err != nil {
		return 0, nil, false
	}
	n := uint64(h[1])
	switch n {
	case 126:
		var l [2]byte
		io.ReadFull(c.r, l[:])
		n = uint64(binary.BigEndian.Uint16(l[:]))
	case 127:
		var l [8]byte
		io.ReadFull(c.r, l[:])
		n = binary.BigEndian.Uint64(l[:])
	}
	payload = make([]byte, n)
	_, err := io.ReadFull(c.r, payload)
	return h[0], payload, err == nil
}

// wantClose reads a close frame with this code, answers it, and expects the end of the stream.
func (c *raw) wantClose(code int, reason string) {
	c.t.Helper()
	first, payload := c.read()
	for first == 0x81 || first == 0x89 || first == 0x8a {
		first, payload = c.read()
	}
	if first != 0x88 || len(payload) < 2 || int(binary.BigEndian.Uint16(payload)) != code || !strings.Contains(string(payload[2:]), reason) {
		c.t.Fatalf("got frame %#x %q, want close %d %q", first, payload, code, reason)
	}
	c.Write(frame(0x88, payload[:2])) // may arrive too late
	if n, err := io.Copy(io.Discard, c.r); n > 0 || err != nil {
		c.t.Fatalf("after the close: %d bytes, %v", n, err)
	}
}
