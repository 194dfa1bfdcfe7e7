package langbot

import (
	"strings"
	"unicode/utf8"

	"github.com/boxd/boxd/langbot/protocol"
	"github.com/boxd/boxd/session"
)

const (
	// previewChars is how many characters of a process's stderr are shown.
	previewChars = 4000
	// previewBytes is enough for these characters and for white space after them.
	previewBytes = previewChars*utf8.UTFMax + 4096
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
	return lastChars(session.Tail(stderr, previewBytes), previewChars)
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
