package bridge

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/boxd/boxd/langbot/protocol"
	"github.com/gorilla/websocket"
)

// Options say what a bridge connects. All fields without a default must be set.
type Options struct {
	// In and Out carry messages in the stdio framing.
	In  io.Reader
	Out io.Writer
	// Dial connects to the daemon.
	Dial func(ctx context.Context) (net.Conn, error)
	// Instance is the instance to connect as.
	Instance string
	// Init, if not nil, is sent as the data of a box_init before any other message.
	Init json.RawMessage
	// Listener, if not nil, serves relays and probes; Run closes it.
	Listener net.Listener
	// Token, if not empty, is required of clients of the Listener.
	Token string
	// Warn reports errors that do not end the bridge.
	Warn func(format string, args ...any)
	// Patience bounds the wait for the answers to box_init and box_shutdown: default
	// 60 s.
	Patience time.Duration
}

// ErrLost is matched by every error about a lost connection to the daemon.
var ErrLost = errors.New("the connection to the daemon is lost")

// StatusError reports that the daemon refused the connection.
type StatusError struct {
	Status int
	Text   string // the first 1 KiB of its answer
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("the daemon answers %d: %s", e.Status, e.Text)
}

// prefix is the path of the protocol on the daemon's own socket.
const prefix = "/langbot"

// fragment is the size of the fragments of long messages. The longest message has 256 of
// them; the daemon accepts 4096.
const fragment = 64 << 10

// bridge is one call of Run.
type bridge struct {
	o  Options
	ws *websocket.Conn

	writing sync.Mutex // serialises messages to the daemon
}

// Run connects to the daemon and carries messages until In or ctx ends. Then it asks the
// daemon to remove the sessions of the instance, and waits for that. Errors: those of Dial;
// *StatusError; ErrLost; those of In, after the sessions were removed.
func Run(ctx context.Context, o Options) error {
	if o.Patience == 0 {
		o.Patience = 60 * time.Second
	}
	if o.Listener != nil {
		stop := serveRelays(&o)
		defer stop()
	}
	b := &bridge{o: o}
	if err := b.dial(ctx); err != nil {
		return err
	}
	defer b.ws.Close()
	return b.run(ctx)
}

func (b *bridge) dial(ctx context.Context) error {
	d := websocket.Dialer{
		NetDialContext:   func(ctx context.Context, _, _ string) (net.Conn, error) { return b.o.Dial(ctx) },
		HandshakeTimeout: 10 * time.Second,
		ReadBufferSize:   fragment, WriteBufferSize: fragment,
	}
	ws, answer, err := d.DialContext(ctx, "ws://boxd"+prefix+"/rpc/ws", http.Header{instanceHeader: {b.o.Instance}})
	if answer != nil && err != nil {
		text, _ := io.ReadAll(io.LimitReader(answer.Body, 1<<10))
		return &StatusError{answer.StatusCode, string(text)}
	}
	if err != nil {
		return err
	}
	ws.SetReadLimit(protocol.MaxMessage)
	b.ws = ws
	return nil
}

func (b *bridge) run(ctx context.Context) error {
	if b.o.Init != nil {
		if err := b.init(); err != nil {
			return err
		}
	}
	// Reading from In cannot be interrupted, so this goroutine may outlive Run.
	ended := make(chan error, 1)
	go func() { ended <- b.requests() }()
	answers := make(chan error, 1)
	go func() { answers <- b.answers() }()
	var err error
	select {
	case err = <-ended:
	case <-ctx.Done():
	case lost := <-answers:
		return lost
	}
	if errors.Is(err, ErrLost) {
		return err
	}
	return errors.Join(err, b.shutdown(answers))
}

// init sends the configuration. A refusal does not end the bridge: the client sends the same
// configuration and gets the same refusal.
func (b *bridge) init() error {
	if err := b.send(ownRequest(seqInit, "box_init", b.o.Init)); err != nil {
		return err
	}
	b.ws.SetReadDeadline(time.Now().Add(b.o.Patience))
	for {
		msg, err := b.receive()
		if err != nil {
			return err
		}
		if code, text, ok := ownAnswer(seqInit, msg); ok {
			if code != 0 {
				b.o.Warn("LANGBOT_BOX_CONFIG: %s", text)
			}
			b.ws.SetReadDeadline(time.Time{})
			return nil
		}
	}
}

// requests carries messages to the daemon until In ends.
func (b *bridge) requests() error {
	in := protocol.NewLineReader(b.o.In)
	for {
		msg, err := in.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("stdin: %w", err)
		}
		if err := b.send(msg); err != nil {
			return err
		}
	}
}

// answers carries messages from the daemon, until the answer to box_shutdown or the
// loss of the connection.
func (b *bridge) answers() error {
	outLost := false
	for {
		msg, err := b.receive()
		if err != nil {
			return err
		}
		if code, text, ok := ownAnswer(seqShutdown, msg); ok {
			if code != 0 {
				return fmt.Errorf("removing the sessions: %s", text)
			}
			return nil
		}
		if outLost {
			continue // the client is gone, and In will end, too
		}
		if err := protocol.WriteMessage(b.o.Out, msg); err != nil {
			b.o.Warn("stdout: %v", err)
			outLost = true
		}
	}
}

// shutdown asks the daemon to remove the sessions, while answers passes on the answers that
// are still under way.
func (b *bridge) shutdown(answers <-chan error) error {
	late := time.AfterFunc(b.o.Patience, func() { b.ws.NetConn().SetDeadline(time.Unix(1, 0)) })
	defer late.Stop()
	if err := b.send(ownRequest(seqShutdown, "box_shutdown", json.RawMessage("{}"))); err != nil {
		return err
	}
	var err error
	select {
	case err = <-answers:
	case <-time.After(b.o.Patience + time.Second):
		return errors.New("stdout: nobody reads the daemon's answers") // that write cannot be interrupted
	}
	b.ws.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""), time.Now().Add(time.Second))
	return err
}

func (b *bridge) send(msg []byte) error {
	b.writing.Lock()
	defer b.writing.Unlock()
	if err := b.ws.WriteMessage(websocket.TextMessage, msg); err != nil {
		return lost(err)
	}
	return nil
}

// receive returns the next text message.
func (b *bridge) receive() ([]byte, error) {
	for {
		kind, msg, err := b.ws.ReadMessage()
		if err != nil {
			return nil, lost(err)
		}
		if kind == websocket.TextMessage {
			return msg, nil
		}
	}
}

func lost(err error) error {
	if closed, ok := errors.AsType[*websocket.CloseError](err); ok && closed.Code != websocket.CloseAbnormalClosure {
		return fmt.Errorf("%w: it was closed with %d %s", ErrLost, closed.Code, closed.Text)
	}
	return fmt.Errorf("%w: %w", ErrLost, err)
}

// Numbers of our own requests. Clients count up from a small number, and -1 is the answer to
// a message without a number.
const (
	seqInit     = "-7206452991318204801"
	seqShutdown = "-7206452991318204802"
)

func ownRequest(seq, action string, data json.RawMessage) []byte {
	return fmt.Appendf(nil, `{"seq_id":%s,"action":%q,"data":%s}`, seq, action, data)
}

// ownAnswer reports whether msg is the answer to our request seq, and returns its content.
func ownAnswer(seq string, msg []byte) (code int, text string, ok bool) {
	if !bytes.Contains(msg, []byte(seq)) {
		return 0, "", false
	}
	var answer struct {
		Seq     json.RawMessage `json:"seq_id"`
		Code    int             `json:"code"`
		Message string          `json:"message"`
	}
	if json.Unmarshal(msg, &answer) != nil || string(answer.Seq) != seq {
		return 0, "", false
	}
	return answer.Code, answer.Message, true
}
