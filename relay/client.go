package relay

import (
	"context"
	"net"
	"net/http"
	"time"
)

// Since says where the streams begin for a client. The zero value is the oldest
// byte that is kept.
type Since struct{ Stdout, Stderr Position }

// Position is an offset, or an end, of a stream.
type Position struct {
	Kind   PositionKind
	Offset int64 // for At
}

// PositionKind says what a Position means.
type PositionKind byte

// The kinds of positions.
const (
	Oldest PositionKind = iota // the oldest byte that is kept
	End                        // behind the newest byte
	At                         // an offset
)

// DialOptions say what to attach to, and how.
type DialOptions struct {
	// URL is that of the relay, with the scheme http, https, ws or wss.
	URL string
	// NetDial makes the connection; nil is TCP.
	NetDial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Header is sent with the request, for example Authorization.
	Header http.Header
	// Write asks to be the writer; TakeOver to become it in place of another.
	Write, TakeOver bool
	Since           Since
	// ClientID, 16 to 64 of a-z, A-Z, 0-9, "-" and "_", names the client across its
	// connections: a new one replaces an older one of the same id.
	ClientID string
}

// Client is one connection to a relay. One goroutine calls Recv, all the time;
// the other methods are safe for concurrent use.
type Client struct{}

// Hello is what the relay says first.
type Hello struct {
	Writer, TTY, HasStdin, HasStderr bool
	StdinAccepted                    int64
	StdinWindow                      int64
	Window                           int64 // zero: no flow control
	Stdout, Stderr                   Bounds
}

// Bounds are those of a stream at the time of a Hello, and where it begins for
// this client.
type Bounds struct{ Oldest, End, Start int64 }

// Event is what a relay says: a Data, Gap, StdinState, WriterChanged, Refused or
// ExitEvent.
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

// WriterChanged says whether this client is the writer from now on.
type WriterChanged struct{ Writer bool }

// Refused says that a signal or a new size could not be delivered.
type Refused struct{ Reason string }

// ExitEvent is the end: no output follows.
type ExitEvent struct{ Exit }

func (Data) event()          {}
func (Gap) event()           {}
func (StdinState) event()    {}
func (WriterChanged) event() {}
func (Refused) event()       {}
func (ExitEvent) event()     {}

// Dial connects. A *DialError has the status of a refusal.
func Dial(ctx context.Context, o DialOptions) (*Client, error) { return nil, nil }

// Hello is what the relay said first.
func (c *Client) Hello() Hello { return Hello{} }

// Recv waits for the next event. What the event before it carried counts as
// consumed, and is acknowledged. io.EOF follows the exit.
func (c *Client) Recv() (Event, error) { return nil, nil }

// Write sends p to stdin, waiting while too much of it is on its way.
func (c *Client) Write(p []byte) (int, error) { return 0, nil }

// CloseStdin ends stdin behind what was written.
func (c *Client) CloseStdin() error { return nil }

// Resize sets the size of the terminal.
func (c *Client) Resize(rows, cols uint16) error { return nil }

// Signal sends a signal, 1 to 64, to the process.
func (c *Client) Signal(sig int) error { return nil }

// Close ends the connection; the process goes on.
func (c *Client) Close() error { return nil }

// AttachOptions say how an Attachment behaves when its connection is lost.
type AttachOptions struct {
	DialOptions
	// GiveUp is how long to try to get a new connection; zero is for ever.
	GiveUp time.Duration
	// Lost, if not nil, is told of each lost connection and each attempt in vain.
	Lost func(err error)
}

// Attachment is a client that replaces its connection when it is lost, so that its
// user sees each byte of output, and the process each byte of stdin, exactly once.
// One goroutine calls Recv, all the time; the other methods are safe for
// concurrent use.
type Attachment struct{}

// Attach connects for the first time. ctx bounds the whole life of the attachment.
func Attach(ctx context.Context, o AttachOptions) (*Attachment, error) { return nil, nil }

// Hello is what the relay said on the latest connection.
func (a *Attachment) Hello() Hello { return Hello{} }

// Recv is that of a Client, across connections. io.EOF follows the exit.
func (a *Attachment) Recv() (Event, error) { return nil, nil }

// Write sends p to stdin, waiting while too much of it is on its way.
func (a *Attachment) Write(p []byte) (int, error) { return 0, nil }

// CloseStdin ends stdin behind what was written.
func (a *Attachment) CloseStdin() error { return nil }

// Resize sets the size of the terminal.
func (a *Attachment) Resize(rows, cols uint16) error { return nil }

// Signal sends a signal, 1 to 64, to the process.
func (a *Attachment) Signal(sig int) error { return nil }

// Close ends the attachment; the process goes on.
func (a *Attachment) Close() error { return nil }
