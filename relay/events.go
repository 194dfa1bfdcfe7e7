package relay

// Hello is what the relay says first.
type Hello struct {
	Writer, TTY, HasStdin, HasStderr bool
	// Interrupted says that another client has been the writer since this one was.
	Interrupted   bool
	StdinAccepted int64 // bytes that the process has taken since its start
	StdinWindow   int64 // bytes of stdin that may be unacknowledged
	Window        int64 // bytes of output that may be; zero: no flow control
	Stdout        Bounds
	Stderr        Bounds
}

// Bounds are those of a stream at the time of a Hello, and where it begins for
// this client: below Oldest if what it asked for is gone.
type Bounds struct{ Oldest, End, Start int64 }

// Event is what a relay says: a Data, Gap, StdinState, StdinLost, WriterChanged,
// Refused or Exited.
type Event interface{ event() }

// Data is output. Bytes is valid until the next Recv.
type Data struct {
	Stream Stream
	Offset int64
	Bytes  []byte
}

// Gap says that the bytes from From up to To are gone.
type Gap struct {
	Stream   Stream
	From, To int64
}

// StdinState says how far stdin was taken by the process, and whether it is closed.
type StdinState struct {
	Accepted int64
	Closed   bool
}

// StdinLost says that bytes written to an Attachment may not have reached the
// process: while it was not connected, another client was the writer, or it is not
// the writer any more.
type StdinLost struct{ Bytes int64 }

// WriterChanged says whether this client is the writer from now on.
type WriterChanged struct{ Writer bool }

// Refused says why a signal or a new size could not be delivered.
type Refused struct{ Reason string }

// Exited is the end: no output follows.
type Exited struct{ Exit }

func (Data) event()          {}
func (Gap) event()           {}
func (StdinState) event()    {}
func (StdinLost) event()     {}
func (WriterChanged) event() {}
func (Refused) event()       {}
func (Exited) event()        {}
