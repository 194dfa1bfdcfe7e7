package langbot

import (
	"context"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/langbot/protocol"
	"github.com/boxd/boxd/session"
)

const (
	// previewChars is how many characters of a process's stderr are shown.
	previewChars = 4000
	// previewBytes is enough for these characters and for white space after them.
	previewBytes = previewChars*utf8.UTFMax + 4096
	// previewPatience bounds the time to read output that exists already.
	previewPatience = time.Second
)

// preview returns the end of a process's stderr, without trailing white space.
func preview(p *session.Process) string {
	if p == nil {
		return ""
	}
	live := p.Live()
	if live == nil {
		return ""
	}
	stderr := live.Stdio().Stderr
	if stderr == nil {
		return ""
	}
	return lastChars(tail(stderr), previewChars)
}

// tail reads the last bytes of an output that may be overwritten at the same time.
func tail(out engine.Output) []byte {
	ctx, cancel := context.WithTimeout(context.Background(), previewPatience)
	defer cancel()
	oldest, end := out.Bounds()
	off := max(oldest, end-previewBytes)
	cut := off > 0
	buf := make([]byte, 0, end-off)
	for off < end {
		n, at, err := out.ReadAt(ctx, buf[len(buf):cap(buf)], off)
		if at > off { // the bytes before were overwritten
			buf = append(buf[:0], buf[len(buf):len(buf)+n]...)
			cut = true
		} else {
			buf = buf[:len(buf)+n]
		}
		off = at + int64(n)
		if err != nil || n == 0 || len(buf) == cap(buf) {
			break
		}
	}
	if cut { // drop the rest of a character that begins before buf
		rest := 0
		for rest < min(len(buf), utf8.UTFMax-1) && !utf8.RuneStart(buf[rest]) {
			rest++
		}
		buf = buf[rest:]
	}
	return buf
}

// lastChars decodes b and returns its last n characters, without trailing white space.
func lastChars(b []byte, n int) string {
	s := strings.TrimRightFunc(decode(b), protocol.IsSpace)
	from := len(s)
	for ; n > 0 && from > 0; n-- {
		_, size := utf8.DecodeLastRuneInString(s[:from])
		from -= size
	}
	return s[from:]
}
