package api

import (
	"bufio"
	"net"
	"net/http"
	"time"
)

// stall is how long a client may take nothing of what is written to it.
const stall = 60 * time.Second

// maxPiece is the most that a client has to take within the time stall.
const maxPiece = 64 << 10

// response remembers what was answered, and keeps a deadline on every write.
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

// extend sets the deadline anew, not more often than it matters.
func (w *response) extend() {
	now := time.Now()
	if w.deadline.Sub(now) < stall-time.Second {
		w.deadline = now.Add(stall)
		// Without a connection, as in a test with a recorder, there is no deadline.
		http.NewResponseController(w.ResponseWriter).SetWriteDeadline(w.deadline)
	}
}

// Flush is for those who ask for an http.Flusher.
func (w *response) Flush() {
	w.extend()
	http.NewResponseController(w.ResponseWriter).Flush()
}

// Hijack is for those who ask for an http.Hijacker. net/http lifts the deadlines.
func (w *response) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	w.hijacked = err == nil
	if w.hijacked {
		w.status = http.StatusSwitchingProtocols
	}
	return conn, rw, err
}

// Unwrap is for http.ResponseController.
func (w *response) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// started says that an answer is under way and cannot be replaced by another.
func (w *response) started() bool { return w.status != 0 || w.hijacked }
