package session

import (
	"sync"

	"github.com/boxd/boxd/engine"
)

// capture keeps the first bytes of a stream.
type capture struct {
	limit int64

	mu   sync.Mutex
	buf  []byte
	more bool
}

// captures puts a capture where the caller of cmd takes no output himself.
func (m *Manager) captures(cmd *engine.Command) (stdout, stderr *capture) {
	if cmd.Stdout == nil {
		stdout = &capture{limit: m.options.CaptureLimit}
		cmd.Stdout = stdout
	}
	if cmd.Stderr == nil && cmd.TTY == nil {
		stderr = &capture{limit: m.options.CaptureLimit}
		cmd.Stderr = stderr
	}
	return stdout, stderr
}

// Write keeps what fits and takes the rest as well: the output limit is the engine's
// business.
func (c *capture) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	keep := p
	if room := c.limit - int64(len(c.buf)); int64(len(p)) > room {
		keep, c.more = p[:room], true
	}
	c.buf = append(c.buf, keep...)
	return len(p), nil
}

// result is what was kept, and whether there was more; nothing for a nil capture.
func (c *capture) result() (b []byte, more bool) {
	if c == nil {
		return nil, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.buf, c.more
}
