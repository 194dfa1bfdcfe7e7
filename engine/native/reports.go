package native

import (
	"github.com/boxd/boxd/agent/wire"
	"golang.org/x/sys/unix"
)

// reports are what the agent says about one id.
type reports struct {
	started chan *wire.FailedMsg // one value: nil if it was started
	exited  chan unix.WaitStatus // at most one value
	warm    bool                 // a spare runs it itself; final when started has its value

	// Only the reader of the agent's frames uses these.
	sawStart, sawExit bool
}

func newReports() *reports {
	return &reports{started: make(chan *wire.FailedMsg, 1), exited: make(chan unix.WaitStatus, 1)}
}

// event handles a frame from the agent. It runs on the box's reader.
func (r *reports) event(frame *wire.Frame) {
	switch frame.Type {
	case wire.TypeStarted, wire.TypeTaken, wire.TypeFailed:
		var failed *wire.FailedMsg
		if frame.Type == wire.TypeFailed {
			failed = new(wire.FailedMsg)
			if failed.Unmarshal(frame.Body) != nil {
				return
			}
		}
		if !r.sawStart {
			r.sawStart, r.warm = true, frame.Type == wire.TypeTaken
			r.started <- failed
		}
	case wire.TypeExited:
		var m wire.ExitedMsg
		if m.Unmarshal(frame.Body) == nil && r.sawStart && !r.sawExit {
			r.sawExit = true
			r.exited <- unix.WaitStatus(m.Status)
		}
	}
}
