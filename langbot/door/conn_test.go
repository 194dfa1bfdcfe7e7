package door

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/boxd/boxd/internal/testutil"
	"github.com/boxd/boxd/langbot/protocol"
)

func TestEnvelopes(t *testing.T) {
	b := newBackend(func(_ context.Context, c *Conn, r protocol.Request) (any, error) {
		switch r.Action {
		case "fail":
			return nil, protocol.Errorf(protocol.SessionNotFound, "session x not found")
		case "panic":
			panic("at the worst moment")
		case "who":
			return map[string]any{"instance": c.Instance(), "value": c.Value, "workspace": r.Context.Workspace}, nil
		}
		return nil, nil
	})
	_, addr := serve(t, b, Options{})
	for _, compressed := range []bool{false, true} {
		ws := dial(t, addr, compressed)
		for _, ignored := range []string{"", "x", "[]", `{"a":1}`, `{"seq_id":1,"code":0,"message":"","data":{}}`, `{"seq_id":1,"action":"a","data":{}`} {
			send(t, ws, ignored)
		}
		for _, tt := range []struct {
			msg, seq string
			message  string
		}{
			{request(1, "__ping"), "1", "success"},
			{`{"seq_id":1.50,"action":"fail","data":{}}`, "1.50", "BoxSessionNotFoundError: session x not found"},
			{`{"action":"fail","data":{}}`, "-1", "ValidationError: seq_id: is missing: it is required"},
			{`{"seq_id":2,"action":"fail"}`, "2", "ValidationError: data: is missing: it is required"},
			{request(3, "panic"), "3", "BoxError: internal error: see the log of the server"},
			{request(4, "after it"), "4", "success"},
		} {
			send(t, ws, tt.msg)
			a := recv(t, ws)
			if string(a.Seq) != tt.seq || a.Message != tt.message || (a.Code == 0) != (a.Message == "success") || string(a.Data) != "{}" || a.ChunkStatus != "continue" {
				t.Errorf("%s: got %+v", tt.msg, a)
			}
		}
		send(t, ws, `{"seq_id":1,"action":"who","data":{},"context":{"instance_uuid":"i","workspace_uuid":"w"}}`)
		if a := recv(t, ws); !strings.Contains(string(a.Data), `"instance":"i"`) || !strings.Contains(string(a.Data), `"workspace":"w"`) || strings.Contains(string(a.Data), "null") {
			t.Errorf("got %s", a.Data)
		}
		ws.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(1000, ""), time.Now().Add(testutil.Patience()))
		if code, _ := closing(t, ws); code != 1000 {
			t.Errorf("close answered with %d", code)
		}
		if c := <-b.over; c.Remote == "" {
			t.Error("no remote address")
		}
	}
}

// TestInFlight fills a connection with actions, and lets them end in a different order.
func TestInFlight(t *testing.T) {
	gates := make([]chan struct{}, maxInFlight)
	for i := range gates {
		gates[i] = make(chan struct{})
	}
	running := make(chan int, maxInFlight)
	b := newBackend(func(ctx context.Context, _ *Conn, r protocol.Request) (any, error) {
		var i int
		if _, err := fmt.Sscan(r.Action, &i); err != nil {
			return nil, nil
		}
		running <- i
		<-gates[i]
		return nil, nil
	})
	_, addr := serve(t, b, Options{})
	ws, other := dial(t, addr, false), dial(t, addr, false)
	for i := range gates {
		send(t, ws, request(i, fmt.Sprint(i)))
	}
	for range gates {
		<-running
	}
	send(t, ws, request(1000, "one more"))
	if a := recv(t, ws); string(a.Seq) != "1000" || a.Code != 1 || a.Message != "Runtime connection is busy (max 128 concurrent actions)" {
		t.Fatalf("got %+v", a)
	}
	send(t, ws, `{"seq_id":1001,"action":5}`) // invalid, and reported as such
	if a := recv(t, ws); !strings.HasPrefix(a.Message, "ValidationError: ") {
		t.Fatalf("got %+v", a)
	}
	send(t, other, request(7, "x")) // another connection has room
	if a := recv(t, other); a.Code != 0 {
		t.Fatalf("got %+v", a)
	}
	order := rand.Perm(len(gates))
	for n, i := range order {
		close(gates[i])
		if a := recv(t, ws); string(a.Seq) != fmt.Sprint(i) || a.Code != 0 {
			t.Fatalf("got %+v, want %d", a, i)
		}
		if n == 0 {
			send(t, ws, request(1002, "room again"))
			if a := recv(t, ws); string(a.Seq) != "1002" || a.Code != 0 {
				t.Fatalf("got %+v", a)
			}
		}
	}
}

// TestBytesInFlight: large requests count more than small ones.
func TestBytesInFlight(t *testing.T) {
	release := make(chan struct{})
	b := newBackend(func(_ context.Context, _ *Conn, r protocol.Request) (any, error) {
		<-release
		return nil, nil
	})
	_, addr := serve(t, b, Options{})
	ws := dial(t, addr, false)
	big := `{"seq_id":1,"action":"a","data":{"x":"` + strings.Repeat("x", protocol.MaxMessage-100) + `"}}`
	for range 5 {
		send(t, ws, big)
	}
	if a := recv(t, ws); a.Code != 1 || a.Message != errBusy.Text {
		t.Errorf("got %+v", a)
	}
	close(release)
	for range 4 {
		if a := recv(t, ws); a.Code != 0 {
			t.Errorf("got %+v", a)
		}
	}
}

func TestLossCancels(t *testing.T) {
	begun, over := make(chan struct{}), make(chan error, 3)
	b := newBackend(func(ctx context.Context, _ *Conn, r protocol.Request) (any, error) {
		begun <- struct{}{}
		<-ctx.Done()
		over <- ctx.Err()
		return nil, ctx.Err()
	})
	_, addr := serve(t, b, Options{})
	stays := dial(t, addr, false)
	send(t, stays, request(1, "x"))
	<-begun
	for _, leave := range []func(*websocket.Conn){
		func(ws *websocket.Conn) { ws.Close() },
		func(ws *websocket.Conn) {
			ws.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(1001, ""), time.Now().Add(testutil.Patience()))
		},
	} {
		ws := dial(t, addr, false)
		send(t, ws, request(1, "x"))
		<-begun
		leave(ws)
		if err := <-over; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		<-b.over
	}
	if len(over) != 0 {
		t.Error("another connection's action was cancelled")
	}
}

// message returns a message of n bytes that requests an action.
func message(n int) []byte {
	const before, after = `{"seq_id":1,"action":"a","data":{"x":"`, `"}}`
	return []byte(before + strings.Repeat("é", (n-len(before)-len(after))/2) + strings.Repeat("x", (n-len(before)-len(after))%2) + after)
}

// fragments splits b into n frames.
func fragments(b []byte, n int, rsv byte) []byte {
	var out []byte
	size := (len(b) + n - 1) / n
	for i := range n {
		piece := b[min(i*size, len(b)):min((i+1)*size, len(b))]
		first := byte(0)
		if i == 0 {
			first = 1 | rsv
		}
		if i == n-1 {
			first |= 0x80
		}
		out = append(out, frame(first, piece)...)
	}
	return out
}

func TestFragments(t *testing.T) {
	sizes := make(chan int, 1)
	b := newBackend(func(_ context.Context, _ *Conn, r protocol.Request) (any, error) {
		sizes <- len(r.Data)
		return nil, nil
	})
	_, addr := serve(t, b, Options{})
	msg := message(100_001)
	dataLen := len(msg) - len(`{"seq_id":1,"action":"a","data":}`)
	big := message(protocol.MaxMessage)
	bigLen := dataLen + len(big) - len(msg)
	ping := frame(0x89, []byte("?"))
	tests := []struct {
		name   string
		stream []byte
		want   int
	}{
		{"one frame", frame(0x81, msg), dataLen},
		{"three, not at characters", fragments(msg, 3, 0), dataLen},
		{"4096", fragments(msg, 4096, 0), dataLen},
		{"empty ones", bytes.Join([][]byte{frame(0x01, nil), frame(0x00, nil), frame(0x00, msg), frame(0x80, nil)}, nil), dataLen},
		{"pings between", bytes.Join([][]byte{frame(0x01, msg[:10]), ping, frame(0x00, msg[10:20]), ping, frame(0x80, msg[20:])}, nil), dataLen},
		{"deflated", frame(0xc1, deflated(msg)), dataLen},
		{"deflated in pieces", fragments(deflated(msg), 50, 0x40), dataLen},
		{"deflated, pings between", bytes.Join([][]byte{frame(0x41, deflated(msg)[:5]), ping, frame(0x80, deflated(msg)[5:])}, nil), dataLen},
		{"deflated by nobody", frame(0x81, msg), dataLen},
		{"16 MiB", frame(0x81, big), bigLen},
		{"16 MiB in pieces of 64 KiB", fragments(big, 256, 0), bigLen},
		{"16 MiB deflated", frame(0xc1, deflated(big)), bigLen},
	}
	c := dialRaw(t, addr, "/rpc/ws")
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c.t = t
			go c.Write(tt.stream) // pings are answered meanwhile
			for first, payload := c.read(); first != 0x81; first, payload = c.read() {
				if first != 0x8a || string(payload) != "?" {
					t.Fatalf("got frame %#x %.100q", first, payload)
				}
			}
			if got := <-sizes; got != tt.want {
				t.Errorf("got %d bytes, want %d", got, tt.want)
			}
		})
	}
}

func TestViolations(t *testing.T) {
	b := newBackend(nil)
	// All of a stream is read before the connection ends, however long that takes.
	_, patient := serve(t, b, Options{}, func(t *times) { t.message, t.linger = time.Hour, time.Hour })
	_, hasty := serve(t, b, Options{}, func(t *times) { t.linger = 200 * time.Millisecond })
	noise := make([]byte, protocol.MaxMessage+1)
	for i := range noise {
		noise[i] = byte('a' + rand.IntN(26))
	}
	unmasked := frame(0x81, []byte("{}"))
	unmasked[1] &= 0x7f
	tests := []struct {
		name   string
		stream []byte
		code   int
		reason string
	}{
		{"binary", frame(0x82, []byte(request(1, "x"))), 1000, ""},
		{"4097 fragments", fragments(message(100_000), 4097, 0), 1009, "too many fragments"},
		{"4097 empty fragments", append(frame(0x01, nil), bytes.Repeat(frame(0x00, nil), 4096)...), 1009, "too many fragments"},
		{"announced", head(0x81, protocol.MaxMessage+1), 1009, "message too big"},
		{"announced 2^62", head(0x81, 1<<62), 1009, "message too big"},
		{"announced 2^64-1", head(0x81, 1<<64-1), 1009, "message too big"},
		{"all of it", frame(0x81, noise), 1009, "message too big"},
		{"in pieces", fragments(noise, 300, 0), 1009, "message too big"},
		{"deflated, hardly smaller", frame(0xc1, deflated(noise)), 1009, "message too big"},
		{"a bomb", frame(0xc1, deflated(bytes.Repeat([]byte("x"), 17<<20))), 1009, "message too big"},
		{"a bomb in pieces", fragments(deflated(make([]byte, 17<<20)), 1000, 0x40), 1009, "message too big"},
		{"not UTF-8", frame(0x81, []byte("{\"a\":\"\xff\"}")), 1007, "not UTF-8"},
		{"half a character", append(frame(0x01, []byte("\xc3")), frame(0x80, []byte("x"))...), 1007, "not UTF-8"},
		{"surrogates", frame(0x81, []byte("\xed\xa0\x80")), 1007, "not UTF-8"},
		{"deflated, not UTF-8", frame(0xc1, deflated([]byte("\xff"))), 1007, "not UTF-8"},
		{"no mask", unmasked, 1002, ""},
		{"RSV2", frame(0xa1, []byte("{}")), 1002, ""},
		{"unknown opcode", frame(0x83, nil), 1002, ""},
		{"continuation of nothing", frame(0x80, nil), 1002, ""},
		{"text in a message", append(frame(0x01, nil), frame(0x81, nil)...), 1002, ""},
		{"long ping", frame(0x89, make([]byte, 126)), 1002, ""},
		{"not deflated", frame(0xc1, []byte("\xff\xff\xff\xff")), 1002, ""},
		{"truncated deflate", frame(0xc1, deflated([]byte(request(1, strings.Repeat("xyz", 100))))[:20]), 1002, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			addr := patient
			if len(tt.stream) < 20 && tt.code != 1000 { // after some of these the close frame cannot be found
				addr = hasty
			}
			c := dialRaw(t, addr, "/rpc/ws")
			c.write(frame(0x81, []byte(request(5, "before")))) // messages before a violation count
			if _, payload := c.read(); !bytes.Contains(payload, []byte(`"seq_id":5,"code":0`)) {
				t.Fatalf("got %s", payload)
			}
			go c.Write(tt.stream)
			c.wantClose(tt.code, tt.reason)
			<-b.over
		})
	}
}

// TestRepliesAreNotCompressed: not even if compression was negotiated.
func TestRepliesAreNotCompressed(t *testing.T) {
	b := newBackend(func(context.Context, *Conn, protocol.Request) (any, error) {
		return map[string]string{"x": strings.Repeat("y", 100_000)}, nil
	})
	_, addr := serve(t, b, Options{})
	c := dialRaw(t, addr, "/rpc/ws")
	if !strings.Contains(c.resp.Header.Get("Sec-WebSocket-Extensions"), "permessage-deflate") {
		t.Fatal("not negotiated")
	}
	c.write(frame(0xc1, deflated([]byte(request(1, "x")))))
	if first, payload := c.read(); first != 0x81 || len(payload) < 100_000 {
		t.Errorf("got frame %#x of %d bytes", first, len(payload))
	}
}

// TestPeerThatNeverReads: a peer sends more and more requests, and reads no replies.
func TestPeerThatNeverReads(t *testing.T) {
	var done atomic.Int64
	blob := strings.Repeat("x", 1<<20)
	b := newBackend(func(context.Context, *Conn, protocol.Request) (any, error) {
		done.Add(1)
		return map[string]string{"x": blob}, nil
	})
	_, addr := serve(t, b, Options{}, func(t *times) { t.write = 500 * time.Millisecond })
	c := dialRaw(t, addr, "/rpc/ws")
	go func() {
		for i := 0; ; i++ {
			if _, err := c.Write(frame(0x81, []byte(request(i, "x")))); err != nil {
				return
			}
		}
	}()
	<-b.over
	// The limit of the queue, the actions under way when it was reached, and the bytes in
	// the kernel.
	if n := done.Load(); n > fullBytes>>20+maxInFlight+64 {
		t.Errorf("%d MiB of replies were made for nobody", n)
	}
}

// TestRefusalsWithoutReader: the same with refusals, which cost the peer nothing.
func TestRefusalsWithoutReader(t *testing.T) {
	block := make(chan struct{})
	b := newBackend(func(ctx context.Context, _ *Conn, _ protocol.Request) (any, error) {
		select {
		case <-block:
		case <-ctx.Done():
		}
		return nil, nil
	})
	_, addr := serve(t, b, Options{}, func(t *times) { t.write = 500 * time.Millisecond })
	c := dialRaw(t, addr, "/rpc/ws")
	flood := bytes.Repeat(frame(0x81, []byte(request(1, "x"))), 1000)
	go func() {
		for {
			if _, err := c.Write(flood); err != nil {
				return
			}
		}
	}()
	<-b.over
	close(block)
}

func TestSilentPeer(t *testing.T) {
	b := newBackend(nil)
	_, addr := serve(t, b, Options{}, func(t *times) { t.ping, t.silence = 100*time.Millisecond, 2*time.Second })
	silent := dialRaw(t, addr, "/rpc/ws")
	alive := dialRaw(t, addr, "/rpc/ws")
	stop := make(chan struct{})
	pongs := make(chan int)
	go func() { // only answers pings
		n := 0
		for first, payload := alive.read(); first == 0x89; first, payload = alive.read() {
			n++
			alive.Write(frame(0x8a, payload))
			select {
			case <-stop:
				pongs <- n
				return
			default:
			}
		}
	}()
	<-b.over
	if n, err := io.Copy(io.Discard, silent.r); n == 0 || err != nil { // it got pings, then the end
		t.Errorf("got %d bytes, %v", n, err)
	}
	close(stop)
	if n := <-pongs; n == 0 || len(b.over) > 0 {
		t.Errorf("who answers was dropped, after %d pings", n)
	}
}

func TestSlowMessage(t *testing.T) {
	b := newBackend(nil)
	_, addr := serve(t, b, Options{}, func(t *times) { t.message = 300 * time.Millisecond })
	c := dialRaw(t, addr, "/rpc/ws")
	begin := time.Now()
	go func() {
		for _, err := c.Write(frame(0x01, []byte("{"))); err == nil; _, err = c.Write(frame(0x00, []byte(" "))) {
			time.Sleep(10 * time.Millisecond)
		}
	}()
	<-b.over
	if took := time.Since(begin); took < 300*time.Millisecond {
		t.Errorf("cut after %v", took)
	}
}

func TestClose(t *testing.T) {
	begun := make(chan struct{}, 10)
	b := newBackend(func(ctx context.Context, _ *Conn, _ protocol.Request) (any, error) {
		begun <- struct{}{}
		<-ctx.Done()
		return nil, ctx.Err()
	})
	d, addr := serve(t, b, Options{}, func(t *times) { t.linger = 300 * time.Millisecond })
	ws := dial(t, addr, false)
	send(t, ws, request(1, "x"))
	mute := dialRaw(t, addr, "/rpc/ws") // never answers
	mute.write(frame(0x81, []byte(request(1, "x"))), head(0x81, 1000))
	<-begun
	<-begun
	done := make(chan struct{})
	go func() {
		d.Close(websocket.CloseGoingAway, stopReason)
		close(done)
	}()
	if code, text := closing(t, ws); code != 1001 || text != "Box runtime shutting down" {
		t.Errorf("got %d %q", code, text)
	}
	<-done
	if len(b.over) != 2 {
		t.Errorf("%d connections are over after Close", len(b.over))
	}
	if first, payload := mute.read(); first != 0x88 || string(payload[2:]) != stopReason {
		t.Errorf("got frame %#x %q", first, payload)
	}
	wantStatus(t, addr, "/rpc/ws", 503, with()...)
	d.Close(websocket.CloseGoingAway, stopReason) // the second call does nothing
}

// TestCloseWhileNobodyReads: a connection whose writer is stuck delays Close no longer than
// the wait for the peer. Nothing else would end that connection.
func TestCloseWhileNobodyReads(t *testing.T) {
	b := newBackend(func(context.Context, *Conn, protocol.Request) (any, error) {
		return map[string]string{"x": strings.Repeat("x", 15<<20)}, nil
	})
	d, addr := serve(t, b, Options{}, func(t *times) {
		t.linger, t.write, t.silence, t.ping = 200*time.Millisecond, time.Hour, time.Hour, time.Hour
	})
	c := dialRaw(t, addr, "/rpc/ws")
	for range 3 {
		c.write(frame(0x81, []byte(request(1, "x"))))
	}
	c.read() // the door is writing
	d.Close(websocket.CloseGoingAway, stopReason)
	<-b.over
}

// TestStrangers: many connections that send nothing displace one another.
func TestStrangers(t *testing.T) {
	_, addr := serve(t, newBackend(nil), Options{})
	ws := dial(t, addr, false)
	first := dialRaw(t, addr, "/healthz", "X-Nothing", "1") // idle
	for range maxStrangers + 10 {
		dialIdle(t, addr)
	}
	if _, err := io.Copy(io.Discard, first.r); err != nil && !strings.Contains(err.Error(), "reset") {
		t.Errorf("the oldest was not displaced: %v", err)
	}
	wantStatus(t, addr, "/healthz", 200)
	send(t, ws, request(1, "x"))
	if a := recv(t, ws); a.Code != 0 {
		t.Errorf("got %+v", a)
	}
}

func BenchmarkRoundTrip(b *testing.B) {
	d := New(newBackend(nil), Options{})
	addr, stop := listen(b, d)
	defer stop()
	for name, compressed := range map[string]bool{"plain": false, "deflated": true} {
		b.Run(name, func(b *testing.B) {
			dialer := websocket.Dialer{EnableCompression: compressed}
			ws, _, err := dialer.Dial("ws://"+addr+"/rpc/ws", headers(instanceHeader, "i"))
			if err != nil {
				b.Fatal(err)
			}
			defer ws.Close()
			msg := message(600)
			for b.Loop() {
				ws.WriteMessage(websocket.TextMessage, msg)
				if _, _, err := ws.ReadMessage(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
