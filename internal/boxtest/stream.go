package boxtest

import (
	"bytes"
	"crypto/md5"
	"encoding/hex"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"
)

// Noise is n random bytes, the same for the same seed.
func Noise(n int, seed byte) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{seed}).Read(b)
	return b
}

func Sum(b []byte) string {
	h := md5.Sum(b)
	return hex.EncodeToString(h[:])
}

// Screen is a writer whose content can be awaited.
type Screen struct {
	mu    sync.Mutex
	text  bytes.Buffer
	wrote chan struct{}
}

func NewScreen() *Screen { return &Screen{wrote: make(chan struct{}, 1)} }

func (s *Screen) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text.Write(b)
	select {
	case s.wrote <- struct{}{}:
	default:
	}
	return len(b), nil
}

func (s *Screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// Await returns when text has been written, and forgets what came before its end.
func (s *Screen) Await(t testing.TB, text string) {
	t.Helper()
	timeout := time.After(Patience)
	for {
		s.mu.Lock()
		i := strings.Index(s.text.String(), text)
		if i >= 0 {
			s.text.Next(i + len(text))
		}
		s.mu.Unlock()
		if i >= 0 {
			return
		}
		select {
		case <-s.wrote:
		case <-timeout:
			t.Fatalf("%q did not come in %v; there is %q", text, Patience, Tail(s.String()))
		}
	}
}

// NewGate is a reader that ends when release is called.
func NewGate() (release func(), r gate) {
	g := make(gate)
	return func() { close(g) }, g
}

type gate chan struct{}

func (g gate) Read([]byte) (int, error) { <-g; return 0, io.EOF }
