package gateway

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/internal/oneline"
	"github.com/boxd/boxd/internal/rpcline"
	"github.com/boxd/boxd/internal/sse"
)

const (
	// goodbyePatience bounds what the bridge still tells the daemon when a call is cancelled or its client is gone.
	goodbyePatience = 5 * time.Second
	// listenPause is the time between two attempts to open the stream of events.
	listenPause = time.Second
	// maxEncoded bounds a line of events. The encoder of the gateway writes some characters of a message as six.
	maxEncoded = 6*maxMessage + 64<<10
)

// BridgeOptions of [Bridge]. Server, Client, In and Out are required.
type BridgeOptions struct {
	Server string         // name of a server of the daemon's configuration
	Client *client.Client // has the rights of the user; it is not closed
	In     io.Reader      // messages of the program, a line each
	Out    io.Writer      // messages for it
	Logger *slog.Logger   // nil: slog.Default
}

// Bridge connects one program, which speaks MCP on In and Out, with a server that the daemon runs in boxes and serves as
// streamable HTTP at /mcp/NAME. It returns nil when In or ctx ends: calls in progress are cancelled then, and the session of the
// protocol ends. It fails only if Out cannot be written: use [CheckServer] before. Reading In is not interrupted: the caller closes
// it.
//
// Messages pass as they are. A program on stdin and stdout knows no sessions of the protocol, so when the daemon has ended the
// one of this program, the bridge initializes another one, as the program did at first, and sends the request again.
func Bridge(ctx context.Context, o BridgeOptions) error {
	b := &bridge{o: o, log: cmp.Or(o.Logger, slog.Default()).With("server", o.Server), out: &rpcline.Writer{W: o.Out}, asking: map[string]*asking{}}
	b.ctx, b.stop = context.WithCancelCause(ctx)
	ctx = b.ctx
	defer func() {
		b.stop(nil)
		b.work.Wait()
		b.end(b.session)
	}()
	input := rpcline.Read(ctx, o.In, maxMessage, b.out.Write)
	for {
		var line []byte
		open := true
		select {
		case line, open = <-input:
		case <-ctx.Done():
		}
		if err := context.Cause(ctx); errors.Is(err, errOutput) {
			return err
		} else if !open || err != nil {
			return nil
		}
		m, err := parse(line)
		switch {
		case err != nil:
			b.write(errorResponse(nil, rpcError{rpcline.Code(err), err.Error(), nil}))
		case m.method == "initialize" && m.id != nil: // what follows needs its session
			b.ask(ctx, m)
		case m.method != "" && m.id != nil:
			b.askAside(ctx, m)
		case m.method == "notifications/cancelled":
			b.cancelled(ctx, m)
		default:
			b.tell(ctx, m)
		}
	}
}

// CheckServer returns nil if the user of c can reach a server of the daemon's configuration, or a line that says why not: if there
// is none of that name, with those that there are. It starts nothing.
func CheckServer(ctx context.Context, c *client.Client, name string) error {
	// Refused with 405 if the server is there.
	resp, err := c.MCP(ctx, http.MethodOptions, name, nil, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusMethodNotAllowed {
		return nil
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxMessage))
	if err != nil {
		return err
	}
	said := text(object(object(body)["error"])["message"])
	switch {
	case said != "":
		return errors.New(oneline.Fold(said))
	case resp.StatusCode == http.StatusNotFound:
		return fmt.Errorf("there is no server %q: the daemon has no MCP servers; mcp_servers of its configuration names them", name)
	}
	return fmt.Errorf("asking for the server %q: the daemon answers %s", name, oneline.Fold(resp.Status))
}

// errOutput: the program does not read any more.
var errOutput = errors.New("writing to the client")

// bridge is the state of one call of [Bridge].
type bridge struct {
	o    BridgeOptions
	log  *slog.Logger
	out  *rpcline.Writer
	ctx  context.Context // of the bridge as a whole
	stop context.CancelCauseFunc
	work sync.WaitGroup

	renewing sync.Mutex // held while a session is replaced

	mu          sync.Mutex
	session     string   // ID of the session of the protocol; empty: none
	version     string   // revision that initialize has negotiated
	hello       *message // the program's initialize
	initialized *message // the notification after that
	asking      map[string]*asking
}

// asking is a request of the program in progress.
type asking struct {
	cancel context.CancelFunc
	modern bool // of a revision without sessions: to cancel it, its stream is closed
}

// write sends a message to the program.
func (b *bridge) write(m *message) {
	if err := b.out.Write(m.encode()); err != nil {
		b.stop(fmt.Errorf("%w: %w", errOutput, err))
	}
}

// modernVersion returns the revision that a message names itself, since 2026-07-28; else it is empty.
func modernVersion(m *message) string {
	return text(object(object(m.members["params"])["_meta"])["io.modelcontextprotocol/protocolVersion"])
}

// askAside asks without holding up the messages that follow, of which one may cancel this one.
func (b *bridge) askAside(ctx context.Context, m *message) {
	ctx, cancel := context.WithCancel(ctx)
	x := &asking{cancel: cancel, modern: modernVersion(m) != ""}
	b.mu.Lock()
	b.asking[string(m.id)] = x
	b.mu.Unlock()
	b.work.Go(func() {
		defer cancel()
		b.ask(ctx, m)
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.asking[string(m.id)] == x {
			delete(b.asking, string(m.id))
		}
	})
}

// ask sends a request and passes on what the daemon answers. A request that is cancelled gets no response.
func (b *bridge) ask(ctx context.Context, m *message) {
	session, version := b.state()
	if m.method == "initialize" {
		defer b.end(session) // a program that begins anew
		session, version = "", ""
	}
	err := b.post(ctx, m, session, version, b.write)
	if errors.Is(err, errSession) && session != "" {
		var refused json.RawMessage
		if refused, err = b.renew(ctx, session); refused != nil {
			b.write(errorAs(m.id, refused))
			return
		} else if err == nil {
			session, version = b.state()
			err = b.post(ctx, m, session, version, b.write)
		}
	}
	if err != nil && ctx.Err() == nil {
		f := &Failure{Server: b.o.Server, Phase: PhaseLost, Reason: oneline.Fold(err.Error())}
		b.write(f.response(m))
	}
}

func (b *bridge) state() (session, version string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.session, b.version
}

// errSession: the daemon does not know the session of the protocol.
var errSession = errors.New("the daemon has ended the session")

// post sends a message. each gets what the daemon answers: for a request a response at last, unless the daemon says that it was
// cancelled.
func (b *bridge) post(ctx context.Context, m *message, session, version string, each func(*message)) error {
	header := http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}}
	if modern := modernVersion(m); modern != "" {
		session, version = "", modern
	}
	for name, value := range map[string]string{"Mcp-Session-Id": session, "Mcp-Protocol-Version": version} {
		if value != "" {
			header.Set(name, value)
		}
	}
	resp, err := b.o.Client.MCP(ctx, http.MethodPost, b.o.Server, header, m.encode())
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 300 {
		body, err := io.ReadAll(io.LimitReader(resp.Body, maxMessage))
		refusal := object(object(body)["error"])
		switch {
		case err != nil:
			return err
		case string(refusal["code"]) == fmt.Sprint(codeSession):
			return errSession
		case refusal == nil:
			return fmt.Errorf("the daemon answers %s", resp.Status)
		case m.id == nil || m.method == "":
			return fmt.Errorf("the daemon answers %s: %s", resp.Status, text(refusal["message"]))
		}
		// Not the daemon's ID: it has not read the one of a message that it refuses unread.
		each(errorAs(m.id, object(body)["error"]))
		return nil
	}
	answered := resp.StatusCode == http.StatusAccepted
	err = receive(resp, func(answer *message) {
		each(answer)
		if answer.method == "" {
			answered = true
			if m.method == "initialize" && answer.members["result"] != nil { // events must not come before the answer
				b.begun(m, resp.Header.Get("Mcp-Session-Id"), text(object(answer.members["result"])["protocolVersion"]))
			}
		}
	})
	if err == nil && !answered {
		err = errors.New("the connection to the daemon ended before the answer")
	}
	if answered { // whatever has become of the stream
		return nil
	}
	return err
}

// receive calls each for the messages in an answer of the daemon.
func receive(resp *http.Response, each func(*message)) error {
	kind, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";")
	switch kind {
	case "text/event-stream":
	case "application/json":
		body, err := io.ReadAll(io.LimitReader(resp.Body, maxEncoded))
		if err != nil {
			return fmt.Errorf("the connection to the daemon ended within the answer: %w", err)
		}
		m, err := parse(body)
		if err != nil {
			return fmt.Errorf("the daemon's answer: %w", err)
		}
		each(m)
		return nil
	default:
		return nil // nothing, after 202
	}
	events := sse.NewReader(resp.Body, maxEncoded)
	for {
		event, err := events.Next()
		if err == io.EOF {
			return nil
		} else if err != nil {
			return fmt.Errorf("the connection to the daemon ended before the answer: %w", err)
		}
		m, err := parse(event.Data)
		if err != nil {
			return fmt.Errorf("an event of the daemon: %w", err)
		}
		each(m)
	}
}

// begun keeps what initialize has answered, and opens the stream of events of the session.
func (b *bridge) begun(hello *message, session, version string) {
	b.mu.Lock()
	b.hello, b.session, b.version = hello, session, version
	b.mu.Unlock()
	if session != "" {
		b.work.Go(func() { b.listen(session, version) })
	}
}

// listen passes on what a server sends outside of requests, until the session or the bridge ends.
func (b *bridge) listen(session, version string) {
	header := http.Header{"Accept": {"text/event-stream"}, "Mcp-Session-Id": {session}, "Mcp-Protocol-Version": {version}}
	for {
		resp, err := b.o.Client.MCP(b.ctx, http.MethodGet, b.o.Server, header, nil)
		if err == nil {
			if resp.StatusCode == http.StatusOK {
				err = receive(resp, b.write)
			}
			resp.Body.Close()
			if resp.StatusCode == http.StatusNotFound || resp.StatusCode == http.StatusMethodNotAllowed {
				return // the next request begins another session
			}
		}
		if now, _ := b.state(); now != session {
			return
		}
		b.log.Debug("mcp: the stream of events ended", "error", err)
		select {
		case <-time.After(listenPause):
		case <-b.ctx.Done():
			return
		}
	}
}

// renew initializes a session in place of one that the daemon has ended. refused is the server's error, if it answers with one.
func (b *bridge) renew(ctx context.Context, lost string) (refused json.RawMessage, err error) {
	b.renewing.Lock()
	defer b.renewing.Unlock()
	b.mu.Lock()
	now, hello, initialized := b.session, b.hello, b.initialized
	b.mu.Unlock()
	if now != lost {
		return nil, nil
	}
	b.log.Warn("mcp: the daemon has ended the session, because it was idle or the daemon was restarted: another one begins, and what the server kept for the old one may be gone")
	err = b.post(ctx, hello, "", "", func(answer *message) {
		if e := answer.members["error"]; e != nil {
			refused = e
		}
	})
	if err == nil && refused == nil && initialized != nil {
		session, version := b.state()
		err = b.post(ctx, initialized, session, version, func(*message) {})
	}
	return refused, err
}

// tell sends a notification, or a response to a request of the server. They keep their order.
func (b *bridge) tell(ctx context.Context, m *message) {
	if m.method == "notifications/initialized" {
		b.mu.Lock()
		b.initialized = m
		b.mu.Unlock()
	}
	session, version := b.state()
	// A new session is told nothing about an old one.
	if err := b.post(ctx, m, session, version, func(*message) {}); err != nil && ctx.Err() == nil && !errors.Is(err, errSession) {
		b.log.Warn("mcp: a message did not reach the server", "method", m.method, "error", err)
	}
}

// cancelled ends a request. Its stream ends at last, so it does not matter whether the daemon has got the request before.
func (b *bridge) cancelled(ctx context.Context, m *message) {
	b.mu.Lock()
	x := b.asking[string(object(m.members["params"])["requestId"])]
	b.mu.Unlock()
	if x == nil {
		return
	}
	b.work.Go(func() {
		defer x.cancel()
		if !x.modern {
			ctx, cancel := context.WithTimeout(ctx, goodbyePatience)
			defer cancel()
			b.tell(ctx, m) // with the reason
		}
	})
}

// end ends a session of the protocol; an empty one is none.
func (b *bridge) end(session string) {
	if session == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), goodbyePatience)
	defer cancel()
	resp, err := b.o.Client.MCP(ctx, http.MethodDelete, b.o.Server, http.Header{"Mcp-Session-Id": {session}}, nil)
	if err != nil {
		b.log.Warn("mcp: the session was not ended; the daemon does so when it was idle", "error", err)
		return
	}
	resp.Body.Close()
}
