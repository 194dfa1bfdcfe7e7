package bridge

import (
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
	// Instance is whose sessions it is about.
	Instance string
	// Init, if not nil, is sent as a box_init before anything else.
	Init json.RawMessage
	// Listener, if not nil, is where relays and probes are served; Run closes it.
	Listener net.Listener
	// Token, if not empty, is asked of who comes to the Listener.
	Token string
	// Warn is told of what is wrong and no reason to end.
	Warn func(format string, args ...any)
	// Patience bounds the wait for the answers to box_init and box_shutdown: default
	// 60 s.
	Patience time.Duration
}

// ErrLost is matched by the loss of the daemon.
var ErrLost = errors.New("the connection to the daemon is lost")

// StatusError is that of a daemon that refuses the connection.
type StatusError struct {
	Status int
	Text   string // up to 1 KiB of its answer
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("the daemon answers %d: %s", e.Status, e.Text)
}

// prefix is where the daemon has the protocol on its own socket.
const prefix = "/langbot"

// fragment is the size of the parts in which long messages are sent: 256 of them are
// the longest, of 4096 that a message may have.
const fragment = 64 << 10

// bridge is one run.
type bridge struct {
	o  Options
	ws *websocket.Conn

	writing sync.Mutex // serialises messages to the daemon
	outLost bool       // nobody reads Out any more; of answers
}

// Run connects to the daemon and carries messages until In or ctx ends. Then it has
// the sessions of the instance removed, and waits for that. Errors: that of Dial;
// *StatusError; ErrLost; one of In, after the sessions were removed.
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
	// In cannot be interrupted: its reader may stay behind, with nothing to do.
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

// init sends the configuration. That the daemon does not like it is no reason to end:
// the client, whose it is, sends it as well and is told.
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
		if err := b.write(msg); err != nil {
			b.o.Warn("stdout: %v", err)
		}
	}
}

// write writes to Out, of which only the first failure is worth a word: In will end,
// too.
func (b *bridge) write(msg []byte) error {
	if b.outLost {
		return nil
	}
	err := protocol.WriteMessage(b.o.Out, msg)
	b.outLost = err != nil
	return err
}

// shutdown has the sessions removed, and passes on what was under way.
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
		return errors.New("stdout: nobody reads what the daemon answered") // that write cannot be interrupted
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
