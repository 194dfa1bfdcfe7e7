package preview

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/boxd/boxd/internal/wsconn"
)

var (
	errSlow = errors.New("the request body arrives too slowly")
	errBody = errors.New("the request body is broken")
)

// clientWriter is an answer whose client has to accept it at some speed.
type clientWriter struct {
	http.ResponseWriter
	rc    *http.ResponseController
	stall time.Duration
	// own are the headers that the caller of the proxy has set. The reverse proxy forgets them when the box sends an
	// informational answer, and adds the box's to them.
	own http.Header

	mu   sync.Mutex
	over bool     // cut or finish was called
	up   net.Conn // after Hijack
}

func newClientWriter(w http.ResponseWriter, stall time.Duration) *clientWriter {
	return &clientWriter{ResponseWriter: w, rc: http.NewResponseController(w), stall: stall, own: w.Header().Clone()}
}

// cut ends writes that wait for the client, now and later: the request may not go on.
func (w *clientWriter) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over {
		return
	}
	w.over = true
	if w.up != nil {
		w.up.Close()
	} else {
		w.rc.SetWriteDeadline(time.Now().Add(-time.Second))
	}
}

// finish makes cut do nothing: the handler returns.
func (w *clientWriter) finish() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
}

// WriteHeader leaves out informational answers: nothing has looked at their headers.
func (w *clientWriter) WriteHeader(status int) {
	if status >= 200 || status == http.StatusSwitchingProtocols {
		maps.Copy(w.Header(), w.own)
		w.ResponseWriter.WriteHeader(status)
	}
}

func (w *clientWriter) Write(p []byte) (int, error) {
	defer w.bound()()
	return w.ResponseWriter.Write(p)
}

// FlushError is what [http.ResponseController] looks for.
func (w *clientWriter) FlushError() error {
	defer w.bound()()
	return w.rc.Flush()
}

// bound sets a deadline and returns the function that removes it: HTTP/2 resets a stream at
// its deadline, even if nothing is being written.
func (w *clientWriter) bound() func() {
	if !w.setDeadline(time.Now().Add(w.stall)) {
		return func() {} // hijacked, cut off, or a recorder of tests
	}
	return func() { w.setDeadline(time.Time{}) }
}

func (w *clientWriter) setDeadline(t time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.over && w.rc.SetWriteDeadline(t) == nil
}

// Hijack is called for a WebSocket. The reverse proxy then writes the headers itself.
func (w *clientWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	maps.Copy(w.Header(), w.own)
	c, rw, err := w.rc.Hijack()
	if err != nil {
		return nil, nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over {
		c.Close()
	}
	w.up = c
	return wsconn.New(c, w.stall), rw, nil
}

// clientBody is a request body of which minBody bytes have to arrive in each time stall
// that is spent waiting for them.
type clientBody struct {
	io.ReadCloser
	rc    *http.ResponseController
	stall time.Duration
	spent time.Duration
	got   int

	mu       sync.Mutex
	finished bool // the handler has returned: the connection is for the next request
}

func (b *clientBody) Read(p []byte) (int, error) {
	began := time.Now()
	b.setDeadline(began.Add(b.stall - b.spent))
	n, err := b.ReadCloser.Read(p)
	b.spent += time.Since(began)
	if b.got += n; b.got >= minBody {
		b.spent, b.got = 0, 0
	}
	if err == io.EOF { // the server now reads ahead to notice that the client leaves
		b.setDeadline(time.Time{})
	} else if errors.Is(err, os.ErrDeadlineExceeded) {
		err = errSlow
	} else if err != nil {
		err = fmt.Errorf("%w: %w", errBody, err)
	}
	return n, err
}

func (b *clientBody) setDeadline(t time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.finished {
		b.rc.SetReadDeadline(t)
	}
}

func (b *clientBody) finish() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.finished = true
}
