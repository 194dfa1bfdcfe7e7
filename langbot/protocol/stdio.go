package protocol

import "io"

// LineReader takes messages from the stdio transport.
type LineReader struct{ r io.Reader }

// NewLineReader returns a reader of the messages in r.
func NewLineReader(r io.Reader) *LineReader { return &LineReader{r} }

// Next returns the next message: a JSON object as text. io.EOF is the end of the input;
// any other error is a violation after which nothing can be read.
func (l *LineReader) Next() ([]byte, error) { return nil, io.EOF }

// WriteMessage writes msg, a JSON text, as one line, or as several if it is long.
func WriteMessage(w io.Writer, msg []byte) error { return nil }
