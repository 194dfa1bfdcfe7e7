package langbot

import (
	"bytes"
	"compress/flate"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/gorilla/websocket"
)

// TestEnvelope: some messages are ignored, others are answered.
func TestEnvelope(t *testing.T) {
	anyKernel(t)
	c := begin(t).dial("i")
	for _, message := range []string{"", "nonsense", "[]", "1", `"x"`, "{}", `{"seq_id":1}`, `{"code":0,"seq_id":1}`, "{\"seq_id\":1,\"action\":\"__ping\",\"data\":{}", "\x00"} {
		if err := c.Send([]byte(message)); err != nil {
			t.Fatal(err)
		}
	}
	// The next answer is that to the ping: nothing above was answered.
	seq := func(message string) Reply {
		t.Helper()
		answer := make(chan Reply, 1)
		var id struct {
			Seq json.Number `json:"seq_id"`
		}
		_ = json.Unmarshal([]byte(message), &id)
		n, err := id.Seq.Int64()
		if err != nil {
			n = -1
		}
		c.mu.Lock()
		c.waiting[n] = answer
		c.mu.Unlock()
		if err := c.Send([]byte(message)); err != nil {
			t.Fatal(err)
		}
		r, ok := <-answer
		if !ok {
			t.Fatal(c.Err())
		}
		return r
	}
	if r := seq(`{"seq_id":7,"action":"__ping","data":{},"extra":[1]}`); r.Code != 0 || r.Message != "success" || string(r.Data) != "{}" {
		t.Errorf("%+v", r)
	}
	for message, class := range map[string]string{
		`{"seq_id":8,"action":"nothing","data":{}}`:                                                                    "ValueError: Action nothing not found",
		`{"seq_id":9,"action":"__heartbeat","data":{}}`:                                                                "ValueError: ",
		`{"action":"__ping","data":{}}`:                                                                                "",
		`{"seq_id":10,"action":"__ping","data":[]}`:                                                                    "",
		`{"seq_id":11,"action":"__ping"}`:                                                                              "",
		`{"seq_id":12,"action":"box_status","data":{}}`:                                                                "PermissionError: ",
		`{"seq_id":13,"action":"box_status","data":{},"context":{"instance_uuid":"i"}}`:                                "",
		`{"seq_id":14,"action":"box_status","data":{},"context":{"instance_uuid":"i","workspace_uuid":"w","other":1}}`: "",
	} {
		if r := seq(message); r.Code == 0 || !strings.HasPrefix(r.Message, class) || string(r.Data) != "{}" {
			t.Errorf("%s: %+v", message, r)
		}
	}
	// What a user says is never taken for the class of an error.
	for _, name := range []string{"BoxAdmissionError: x", "BoxReadinessError:", "a BoxSessionConflictError: b"} {
		r, err := c.Ask(t.Context(), &Context{"i", "w", 1}, "box_get_session", object{"session_id": name})
		if err != nil {
			t.Fatal(err)
		}
		if e := (&RemoteError{r.Message}); e.Class() != "BoxSessionNotFoundError" {
			t.Errorf("%q is taken for a %s", r.Message, e.Class())
		}
		r, err = c.Ask(t.Context(), nil, name, object{})
		if err != nil {
			t.Fatal(err)
		}
		if e := (&RemoteError{r.Message}); e.Class() != "BoxError" {
			t.Errorf("%q is taken for a %s", r.Message, e.Class())
		}
	}
}

// TestMessages: bounds of messages, compressed and in fragments.
func TestMessages(t *testing.T) {
	t.Parallel()
	anyKernel(t)
	w := begin(t)
	for _, deflate := range []bool{false, true} {
		dialer := w.dialer()
		dialer.Deflate = deflate
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		b := &bot{nil, w, Context{"i", "w", 1}}
		var err error
		if b.Client, err = dialer.Dial(ctx, "i"); err != nil {
			t.Fatal(err)
		}
		text := strings.Repeat("é€😀x", 90_000)
		b.call("box_create_skill", object{"skill": object{"name": "big", "instructions": text}})
		if got := b.call("box_get_skill", object{"name": "big"}); strings.TrimSpace(got["skill"].(object)["instructions"].(string)) != strings.TrimSpace(text) {
			t.Error("a long text came back changed")
		}
		b.call("box_delete_skill", object{"name": "big"})
		// The largest message, and one byte more.
		frame := `{"seq_id":1,"action":"__ping","data":{"x":""}}`
		exact := strings.Replace(frame, `""`, `"`+strings.Repeat("x", 16<<20-len(frame))+`"`, 1)
		if err := b.Send([]byte(exact)); err != nil {
			t.Fatal(err)
		}
		b.call("box_status", object{})
		if err := b.Send([]byte(exact + " ")); err != nil {
			t.Logf("sending: %v", err) // it may have been cut off by then
		}
		within(t, "the connection ends", b.Done())
		if !websocket.IsCloseError(b.Err(), websocket.CloseMessageTooBig) && !errors.Is(b.Err(), http.ErrAbortHandler) && !strings.Contains(b.Err().Error(), "reset") {
			t.Errorf("a message that is too large: %v", b.Err())
		}
		b.Close()
	}
	// A bomb: little on the wire and much behind it.
	c := w.dial("i")
	var bomb bytes.Buffer
	z, _ := flate.NewWriter(&bomb, flate.BestCompression)
	zeros := make([]byte, 1<<20)
	for range 200 {
		if _, err := z.Write(zeros); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Flush(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.WebSocket().NetConn().Write(frameOf(0xC1, bytes.TrimSuffix(bomb.Bytes(), []byte{0, 0, 0xff, 0xff}))); err != nil {
		t.Fatal(err)
	}
	within(t, "the connection ends", c.Done())
	if !websocket.IsCloseError(c.Err(), websocket.CloseMessageTooBig) {
		t.Errorf("a message that grows to 200 MiB: %v", c.Err())
	}
	c = w.dial("i")
	if err := c.WebSocket().WriteMessage(websocket.BinaryMessage, []byte(`{"seq_id":1,"action":"__ping","data":{}}`)); err != nil {
		t.Fatal(err)
	}
	within(t, "the connection ends", c.Done())
	if !websocket.IsCloseError(c.Err(), websocket.CloseNormalClosure) {
		t.Errorf("a binary message: %v", c.Err())
	}
	// 4,096 fragments and no more.
	c = w.dial("i")
	var frames bytes.Buffer
	frames.Write(frameOf(0x01, []byte("{")))
	for range 4096 {
		frames.Write(frameOf(0x00, []byte(" ")))
	}
	if _, err := c.WebSocket().NetConn().Write(frames.Bytes()); err != nil {
		t.Fatal(err)
	}
	within(t, "the connection ends", c.Done())
	w.bot("i", "w").call("box_status", object{})
}

// frameOf is a client's frame, masked with zeros.
func frameOf(first byte, payload []byte) []byte {
	f := []byte{first}
	switch n := len(payload); {
	case n < 126:
		f = append(f, 0x80|byte(n))
	case n < 1<<16:
		f = append(f, 0x80|126, byte(n>>8), byte(n))
	default:
		f = append(f, 0x80|127, 0, 0, 0, 0, byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
	}
	return append(append(f, 0, 0, 0, 0), payload...)
}

// TestBusy: of 129 actions at once, the last one is answered with an error.
func TestBusy(t *testing.T) {
	anyKernel(t)
	b := begin(t).bot("i", "w")
	s := spec("s", object{"pids_limit": 1000})
	b.sh(s, "mkfifo /workspace/gate")
	var answers []<-chan Reply
	for range 128 {
		a, err := b.Begin(&b.at, "box_exec", spec("s", object{"pids_limit": 1000, "timeout_sec": 300, "cmd": "echo x >> /workspace/waiting; cat /workspace/gate"}))
		if err != nil {
			t.Fatal(err)
		}
		answers = append(answers, a)
	}
	r, err := b.Ask(t.Context(), &b.at, "box_exec", spec("s", object{"pids_limit": 1000, "cmd": "true"}))
	if err != nil || r.Code == 0 || !strings.HasSuffix(r.Message, "Runtime connection is busy (max 128 concurrent actions)") {
		t.Errorf("%+v, %v", r, err)
	}
	other := b.w.bot("i", "w") // another connection has its own
	if out := other.sh(s, "while test $(wc -l < /workspace/waiting) -lt 128; do sleep 0.05; done; echo open > /workspace/gate; echo done"); out != "done" {
		t.Errorf("%q", out)
	}
	// The first reader may have taken all, the others wait for more.
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, a := range answers {
			<-a
		}
	}()
	for ended := false; !ended; {
		select {
		case <-done:
			ended = true
		default:
			_, _ = other.tryExec(spec("s", object{"pids_limit": 1000, "timeout_sec": 20}), "timeout 0.2 sh -c 'echo open > /workspace/gate'")
		}
	}
	b.call("box_status", object{})
}

// TestToken: without the secret, no client is let in.
func TestToken(t *testing.T) {
	anyKernel(t)
	secret := strings.Repeat("s3cret-", 6)
	t.Setenv("LANGBOT_BOX_CONTROL_TOKEN", secret)
	w := begin(t)
	dialer := w.dialer()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for _, token := range []string{"", "wrong", secret + "x", secret[1:]} {
		dialer.Token = token
		var status *StatusError
		if _, err := dialer.Dial(ctx, "i"); !errors.As(err, &status) || status.Status != 401 {
			t.Errorf("token %q: %v", token, err)
		}
	}
	dialer.Token = secret
	c, err := dialer.Dial(ctx, "i")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	log, err := readLog(w)
	if err != nil || strings.Contains(log, secret) {
		t.Errorf("the log has the secret, or cannot be read: %v", err)
	}
}
