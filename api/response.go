package api

import (
	"bufio"
	"net"
	"net/http"
	"time"
)

// stall is how long a client may accept nothing of its answer.
const stall = 60 * time.Second

// maxPiece is the most that a client has to accept within the time stall.
const maxPiece = 64 << 10

// response records the answer, and sets a deadline for every write.
type response struct {
	http.ResponseWriter
	call     *call
	status   int // 0 before the header is written
	hijacked bool
	deadline time.Time
}

func (w *response) WriteHeader(status int) {
	if w.status == 0 && status >= 200 {
		w.status = status
	}
	w.extend()
	w.ResponseWriter.WriteHeader(status)
}

func (w *response) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	done := 0
	for {
		w.extend()
		n, err := w.ResponseWriter.Write(p[done:min(done+maxPiece, len(p))])
		if done += n; err != nil || done >= len(p) {
			return done, err
		}
	}
}

// extend sets a new deadline, at most once a second.
func (w *response) extend() {
	now := time.Now()
	if w.deadline.Sub(now) < stall-time.Second {
		w.deadline = now.Add(stall)
		// A recorder of a test has no connection, and so no deadline.
		http.NewResponseController(w.ResponseWriter).SetWriteDeadline(w.deadline)
	}
}

// Flush implements http.Flusher.
func (w *response) Flush() {
	w.extend()
	http.NewResponseController(w.ResponseWriter).Flush()
}

// Hijack implements http.Hijacker. net/http lifts the deadlines.
func (w *response) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	w.hijacked = err == nil
	if w.hijacked {
		w.status = http.StatusSwitchingProtocols
	}
	return conn, rw, err
}

// Unwrap is called by http.ResponseController.
func (w *response) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// started reports whether an answer was begun and cannot be replaced any more.
func (w *response) started() bool { return w.status != 0 || w.hijacked }
