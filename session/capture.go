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

// captures adds a capture for each stream that the caller of cmd does not receive itself.
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

// Write keeps what fits and drops the rest without an error: the engine enforces the output
// limit.
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

// result returns what was kept, and whether there was more. A nil capture kept nothing.
func (c *capture) result() (b []byte, more bool) {
	if c == nil {
		return nil, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.buf, c.more
}
