package relay

// Hello is the first message of a relay. It describes the process and the client's role.
type Hello struct {
	Writer, TTY, HasStdin, HasStderr bool
	// Interrupted reports that another client was the writer since this one last was.
	Interrupted   bool
	StdinAccepted int64 // bytes that the process has accepted since its start
	StdinWindow   int64 // maximum of unacknowledged bytes of stdin
	Window        int64 // maximum of unacknowledged bytes of output; 0: no flow control
	Stdout        Bounds
	Stderr        Bounds
}

// Bounds are the offsets of a stream at the time of the Hello: of the oldest byte kept,
// after the newest, and where the stream starts for this client. Start is below Oldest if
// the client asked for bytes that are no longer kept.
type Bounds struct{ Oldest, End, Start int64 }

// Event is a message of a relay: [Data], [Gap], [StdinState], [StdinLost],
// [WriterChanged], [Refused] or [Exited].
type Event interface{ event() }

// Data is a piece of output. Bytes is valid until the next Recv.
type Data struct {
	Stream Stream
	Offset int64
	Bytes  []byte
}

// Gap reports that the bytes from From up to To are no longer kept.
type Gap struct {
	Stream   Stream
	From, To int64
}

// StdinState reports how much of stdin the process has accepted, and whether it is closed.
type StdinState struct {
	Accepted int64
	Closed   bool
}

// StdinLost reports that the last Bytes written to an [Attachment] may not have reached
// the process: while the attachment was not connected another client was the writer, or
// the attachment is no longer the writer.
type StdinLost struct{ Bytes int64 }

// WriterChanged reports whether this client is the writer from now on.
type WriterChanged struct{ Writer bool }

// Refused reports why a signal or a window size was not delivered.
type Refused struct{ Reason string }

// Exited reports the end of the process. No output follows.
type Exited struct{ Exit }

func (Data) event()          {}
func (Gap) event()           {}
func (StdinState) event()    {}
func (StdinLost) event()     {}
func (WriterChanged) event() {}
func (Refused) event()       {}
func (Exited) event()        {}
