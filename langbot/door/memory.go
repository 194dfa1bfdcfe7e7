package door

import "github.com/boxd/boxd/langbot/protocol"

// Memory bounds the memory for messages of all connections of the Doors that share it. It
// has three parts, none of which waits for another:
//
//	reading  messages that are being read      a long one waits for its turn
//	asking   requests under way                further ones fail with errAll
//	waiting  replies that wait to be written   stalled connections are cut; failing that, errReplies
//
// In each part, every connection has `own` bytes to itself, so that there is always room for
// a message of the usual size and for its reply. The rest is divided by instance first, as
// each connection names it: of asking and waiting, an instance can have as much as it leaves
// to others, and one of its connections as much of that as it leaves to the other
// connections of the instance. So an instance that is alone can have half, and its only
// connection a quarter. There is room for newcomers, too, and for small messages longer than
// for large ones. Turns to read rotate among the instances.
//
// All of this takes at most mostReading + mostAsking + mostWaiting, 1008 MiB, plus less than
// 512 KiB per connection: own bytes in each part, half as much again while a short message
// grows, and refusals (see sender.admit).
//
// The memory of actions, including their results, is not counted: the length of a reply is
// known only after its result is encoded. At most maxEncoding replies of all connections
// are between being encoded and being admitted or refused; other results wait.
type Memory struct {
	reading readers
	asking  pool
	waiting pool
	// encoding has an element for each reply that is being encoded.
	encoding chan struct{}
}

const (
	// own is how many bytes a connection has to itself. It is more than a chunk of a file,
	// the longest message that clients send regularly.
	own = 64 << 10

	mostReading = 240 << 20
	mostAsking  = 256 << 20
	mostWaiting = 512 << 20
	// maxReaders is how many messages longer than own can be read at once. Their final
	// length is not known, so each counts as one of maximum length, which has two buffers
	// while it grows.
	maxReaders = mostReading / (protocol.MaxMessage * 3 / 2)
	// maxEncoding is how many replies can be encoded at once. Meanwhile each takes several
	// times its length, with the buffers of the encoder. Encoding needs only CPU time, so a
	// higher number would not make it much faster.
	maxEncoding = 4
)

var (
	errAll = &protocol.Error{Class: protocol.BoxError,
		Text: "the requests under way on all connections have more bytes than the server takes: try again later"}
	errReplies = &protocol.Error{Class: protocol.BoxError,
		Text: "the replies waiting on all connections have more bytes than the server keeps: the reply to this request is lost"}
)

// NewMemory returns a Memory of the usual size.
func NewMemory() *Memory { return newMemory(maxReaders, mostAsking, mostWaiting) }

func newMemory(readers, asking, waiting int) *Memory {
	m := &Memory{encoding: make(chan struct{}, maxEncoding)}
	m.reading.free = readers
	m.asking.init(asking)
	m.waiting.init(waiting)
	return m
}
