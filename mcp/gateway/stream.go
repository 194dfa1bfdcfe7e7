package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"
)

// stream is the response to an HTTP request: one message as JSON, or several as server-sent events. It is
// used by one goroutine.
type stream struct {
	w     http.ResponseWriter // nil: line gets the messages
	line  func([]byte) error
	id    json.RawMessage // of the request; nil: it is no request
	plain bool            // the client accepts JSON only
	begun bool
	sse   bool
	err   error // of the connection
}

func newStream(w http.ResponseWriter, r *http.Request) *stream {
	accept := strings.Join(r.Header.Values("Accept"), ",")
	return &stream{w: w, plain: accept != "" && !strings.Contains(accept, "text/event-stream") && !strings.Contains(accept, "*/*")}
}

// open begins the events.
func (s *stream) open() {
	s.begun, s.sse = true, true
	h := s.w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-cache, no-transform")
	h.Set("X-Accel-Buffering", "no") // nginx passes events on at once
	s.w.WriteHeader(http.StatusOK)
	s.write(nil)
}

// write writes to the connection, each 64 KiB within writeTimeout.
func (s *stream) write(texts ...[]byte) {
	if s.err != nil {
		return
	}
	conn := http.NewResponseController(s.w)
	for _, text := range texts {
		for part := range slices.Chunk(text, 64<<10) {
			_ = conn.SetWriteDeadline(time.Now().Add(writeTimeout)) // a recorder of a test has no connection
			if _, s.err = s.w.Write(part); s.err != nil {
				return
			}
		}
	}
	if err := conn.Flush(); s.err == nil && !errors.Is(err, http.ErrNotSupported) {
		s.err = err
	}
	_ = conn.SetWriteDeadline(time.Time{})
}

// send sends a message. last means that it is the response.
func (s *stream) send(b []byte, last bool) {
	switch {
	case s.w == nil:
		s.begun, s.err = true, s.line(b)
		return
	case s.sse:
	case last:
		s.begun = true
		s.w.Header().Set("Content-Type", "application/json")
		s.w.WriteHeader(http.StatusOK)
		s.write(b)
		return
	case s.plain:
		return
	default:
		s.open()
	}
	s.write([]byte("event: message\ndata: "), b, []byte("\n\n"))
}

// copy sends what q has. It reports false if ctx or the connection ended before q.
func (s *stream) copy(ctx context.Context, q *queue) bool {
	defer q.drop()
	tick := time.NewTicker(keepAlive)
	defer tick.Stop()
	for s.err == nil {
		b, last := q.pop()
		if b != nil {
			s.send(b, last)
			continue
		}
		if last {
			if !s.begun && s.w != nil { // a request that was cancelled has no response
				s.begun = true
				s.w.WriteHeader(http.StatusAccepted)
			}
			return true
		}
		select {
		case <-q.wake:
		case <-ctx.Done():
			return false
		case <-tick.C:
			if s.plain {
				continue
			}
			if !s.sse {
				s.open()
			}
			s.write([]byte(": \n\n"))
		}
	}
	return false
}

// fail sends err as the response.
func (s *stream) fail(err error) {
	e := rpcError{Code: codeFailed, Message: err.Error()}
	if f, ok := errors.AsType[*Failure](err); ok {
		e.Data = f
	}
	if !s.begun && s.w != nil {
		s.w.Header().Del("Mcp-Session-Id")
	}
	s.send(errorResponse(s.id, e).encode(), true)
}
