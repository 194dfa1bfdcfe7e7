package door

import "github.com/boxd/boxd/langbot/protocol"

// Memory bounds what the messages of all connections take, of every Door that it is
// given to. It has three parts, which never wait for one another:
//
//	reading  messages that are being read     a long one waits for its turn
//	asking   requests under way               one more is answered with errAll
//	waiting  replies that are to be written   who takes nothing is cut, else errReplies
//
// In each of them every connection has `own` bytes to itself, so that whatever others do
// there is room for a message of the usual size, and for its reply. What is beyond these
// is shared by instance first, as each connection names it: an instance can have as much
// of asking and waiting as it leaves to others, and a connection of it as much of that as
// it leaves to the others of its instance. So alone an instance can have half, and its
// only connection a quarter; who comes later finds room, too, and smaller messages find
// it for longer than larger ones. Turns to read go round by instance.
//
// The most that these can have is mostReading + mostAsking + mostWaiting, 1008 MiB, and
// less than 512 KiB for each connection: own bytes in each part, half as much again while
// a short message grows, and refusals (see sender.admit).
//
// Not counted is what actions have, their results among it: how long a reply becomes
// shows only when its result is encoded. No more than maxEncoding replies of all
// connections are between that and being admitted or refused; other results wait.
type Memory struct {
	reading readers
	asking  pool
	waiting pool
	// encoding has a place for each reply that is being encoded.
	encoding chan struct{}
}

const (
	// own is what a connection has to itself: more than a chunk of a file, which is the
	// longest message that clients send as a matter of course.
	own = 64 << 10

	mostReading = 240 << 20
	mostAsking  = 256 << 20
	mostWaiting = 512 << 20
	// maxReaders is how many messages longer than own can be read at once. Nobody knows
	// how long they become, so each counts as the longest, and while its buffer grows
	// there are two.
	maxReaders = mostReading / (protocol.MaxMessage * 3 / 2)
	// maxEncoding is how many replies can be encoded at once. Each takes several times
	// its length then, with the buffers of the encoder. They wait for nothing but
	// processors, so more of them at once would not be done much sooner.
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
