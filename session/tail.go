package session

import (
	"context"
	"time"
	"unicode/utf8"

	"github.com/boxd/boxd/engine"
)

// tailPatience bounds the time to read output that exists already.
const tailPatience = time.Second

// Tail returns the last bytes of an output, at most most, that may be overwritten at the same
// time. They do not begin within a character.
func Tail(out engine.Output, most int64) []byte {
	ctx, cancel := context.WithTimeout(context.Background(), tailPatience)
	defer cancel()
	oldest, end := out.Bounds()
	off := max(oldest, end-most)
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
