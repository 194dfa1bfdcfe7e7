package relay

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/gorilla/websocket"

	"github.com/boxd/boxd/internal/wsconn"
)

type closing = wsconn.Closing

var (
	closeExited   = &closing{Code: websocket.CloseNormalClosure, Text: ""}
	closeRestart  = &closing{Code: websocket.CloseServiceRestart, Text: "the daemon is stopping: retry"}
	closeRefused  = &closing{Code: codeUnauthorized, Text: "the client is not admitted any more"}
	closeReplaced = &closing{Code: codeReplaced, Text: "replaced by a newer connection of this client"}
	closeText     = &closing{Code: websocket.CloseUnsupportedData, Text: "text message: want binary ones"}
	closeBig      = &closing{Code: websocket.CloseMessageTooBig, Text: fmt.Sprintf("message above %d bytes", maxToServer)}
	closeObserver = &closing{Code: websocket.ClosePolicyViolation, Text: "an observer does not write"}
	closeLost     = &closing{Code: websocket.CloseNoStatusReceived, Text: "the peer is gone"}
)

// writerHeader marks the refusal of a second writer, because the server that contains the
// relay may answer 409 for other reasons.
const writerHeader = "Boxd-Writer"

// Close codes of our own.
const (
	codeReplaced = 4001
	codeConflict = 4009
	// codeUnauthorized is that of the IANA registry of close codes.
	codeUnauthorized = 3000
)

// closeBroken: the peer violated the protocol.
func closeBroken(err error) *closing {
	return &closing{Code: websocket.CloseProtocolError, Text: err.Error()}
}

// closeFailed: a stream failed.
func closeFailed(format string, args ...any) *closing {
	return &closing{Code: websocket.CloseInternalServerErr, Text: fmt.Sprintf(format, args...)}
}

// refusal is the reason for which a request is not upgraded.
type refusal struct {
	status int
	text   string
}

func refuse(status int, format string, args ...any) *refusal {
	return &refusal{status, fmt.Sprintf(format, args...)}
}

// Serve upgrades the request to a WebSocket and relays until the process has ended, the
// client has disconnected, the context of the request ends, because the client may not stay, or the hub is
// closed. If it refuses the request, it answers
// with a status and a line of text, see [Options].Refuse.
func (h *Hub) Serve(w http.ResponseWriter, r *http.Request, g Grant) {
	if ref := h.serve(w, r, g); ref != nil {
		h.o.Counters.Refused.Add(1)
		if ref.status == http.StatusConflict {
			w.Header().Set(writerHeader, "taken")
		}
		h.o.Refuse(w, r, ref.status, ref.text)
	}
}

func (h *Hub) serve(w http.ResponseWriter, r *http.Request, g Grant) *refusal {
	req, err := parseRequest(r.URL.RawQuery)
	if err != nil {
		return refuse(http.StatusBadRequest, "%v", err)
	}
	if !websocket.IsWebSocketUpgrade(r) {
		return refuse(http.StatusBadRequest, "the relay is a WebSocket: ask for an upgrade")
	}
	if req.write && !g.Write {
		return refuse(http.StatusForbidden, "mode: this caller may only observe")
	}
	if ref := h.addUser(1, req.write); ref != nil {
		return ref
	}
	defer h.removeUser(1)
	defer h.src.Hold()()
	c := newConn(h, req, g)
	defer c.cancel(closeLost)
	if ref := c.locate(); ref != nil {
		return ref
	}
	if req.write {
		ref := h.mayClaim(c)
		// A browser does not tell its page the status. So the page is told by a close code after the upgrade, unless
		// the other writer has gone by then.
		if ref != nil && (ref.status != http.StatusConflict || !slices.Contains(websocket.Subprotocols(r), Subprotocol)) {
			return ref
		}
	}
	if !c.upgrade(w, r) {
		return nil // the upgrader has answered
	}
	// net/http does not end this context while the handler runs: its connection was taken over.
	defer context.AfterFunc(r.Context(), func() { c.cancel(closeRefused) })()
	c.serve()
	return nil
}

// Subprotocol is the WebSocket sub-protocol of relays. Clients need not offer one; a browser that
// offers some expects the server to accept one. Who offers it is told after the upgrade, by close code 4009, that
// there is a writer already.
const Subprotocol = "boxd"

// upgrade answers the request, with the WebSocket or with an error. It needs no
// CheckOrigin: the default accepts requests without Origin, which browsers cannot make,
// and those of the same host.
func (c *conn) upgrade(w http.ResponseWriter, r *http.Request) bool {
	upgrader := websocket.Upgrader{
		HandshakeTimeout: 10 * time.Second,
		Subprotocols:     []string{Subprotocol},
		Error: func(w http.ResponseWriter, r *http.Request, status int, reason error) {
			c.hub.o.Refuse(w, r, status, reason.Error())
		},
	}
	ws, err := wsconn.Upgrade(&upgrader, w, r, func(nc net.Conn) net.Conn {
		c.net = wsconn.New(nc, c.hub.o.Stall)
		return c.net
	})
	if err != nil {
		c.hub.o.Counters.Refused.Add(1)
		return false
	}
	c.ws = ws
	return true
}

// locate determines where the streams start for this client.
func (c *conn) locate() *refusal {
	for _, s := range c.streams() {
		p := c.req.since.Stdout
		if s.name == Stderr {
			p = c.req.since.Stderr
		}
		oldest, end := s.out.Bounds()
		s.first = Bounds{Oldest: oldest, End: end, Start: p.Offset}
		switch {
		case p.Kind == Oldest:
			s.first.Start = oldest
		case p.Kind == End:
			s.first.Start = end
		case p.Offset > end:
			return refuse(http.StatusRequestedRangeNotSatisfiable,
				"since: %v ends at %d, which is below %d: this is not the process that the offset is from", s.name, end, p.Offset)
		}
		s.acked, s.sent = s.first.Start, s.first.Start
	}
	return nil
}

// serve relays until the connection ends, and joins the goroutines that it started.
func (c *conn) serve() {
	h := c.hub
	h.o.Counters.Attached.Add(1)
	h.o.Counters.Connections.Add(1)
	defer h.o.Counters.Connections.Add(-1)
	defer h.removeConn(c)
	h.replaceOlder(c)
	if c.req.write {
		if ref := h.claimWriter(c); ref != nil {
			c.cancel(&closing{Code: codeConflict, Text: ref.text})
		}
	}
	h.o.Logger.Debug("relay attached", "writer", c.writer.Load(), "since", c.req.since.String())
	c.start()
	c.read()
	c.wg.Wait()
	h.o.Logger.Debug("relay detached", "reason", context.Cause(c.ctx))
}
