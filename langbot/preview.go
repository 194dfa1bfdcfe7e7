package langbot

import (
	"context"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/session"
)

const (
	// previewChars is how much of a process's stderr is shown, in characters.
	previewChars = 4000
	// previewBytes is enough for them, and for white space behind them.
	previewBytes = previewChars*utf8.UTFMax + 4096
	// previewPatience bounds the reading of what is there already.
	previewPatience = time.Second
)

// preview is the end of a process's stderr, without white space behind it.
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

// tail reads the last bytes of an output that is overwritten meanwhile.
func tail(out engine.Output) []byte {
	ctx, cancel := context.WithTimeout(context.Background(), previewPatience)
	defer cancel()
	oldest, end := out.Bounds()
	off := max(oldest, end-previewBytes)
	cut := off > 0
	buf := make([]byte, 0, end-off)
	for off < end {
		n, at, err := out.ReadAt(ctx, buf[len(buf):cap(buf)], off)
		if at > off { // what lies before is gone
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
	if cut {
		buf = withoutRest(buf)
	}
	return buf
}

// withoutRest takes the rest of a character that was cut off the front.
func withoutRest(b []byte) []byte {
	for i := range min(len(b), utf8.UTFMax-1) {
		if utf8.RuneStart(b[i]) {
			return b[i:]
		}
	}
	return b[min(len(b), utf8.UTFMax-1):]
}

// lastChars decodes b and keeps the last n characters of it, white space at the end not
// counted.
func lastChars(b []byte, n int) string {
	s := strings.TrimRightFunc(decode(b), isSpace)
	from := len(s)
	for ; n > 0 && from > 0; n-- {
		_, size := utf8.DecodeLastRuneInString(s[:from])
		from -= size
	}
	return s[from:]
}
