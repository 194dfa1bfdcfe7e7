package protocol

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"unicode/utf8"
)

// Limits and words of the stdio transport.
const (
	maxLine      = 64 << 10 // bytes of a line, without its newline
	maxWhole     = 16 << 10 // bytes of a message sent as one line, and of each piece of a longer one
	maxPieces    = 4096     // pieces of a message
	chunkStart   = "chunk_start"
	chunkData    = "chunk_data"
	chunkEnd     = "chunk_end"
	noAssembling = -1
)

// LineReader reads messages from the stdio transport: one per line, or a long one in pieces
// between a line that announces its size and a line that ends it.
type LineReader struct {
	r *bufio.Reader

	total  int // announced size of the message in pieces, or noAssembling
	pieces int
	msg    []byte
	err    error
}

// NewLineReader returns a reader of the messages in r.
func NewLineReader(r io.Reader) *LineReader {
	return &LineReader{r: bufio.NewReaderSize(r, maxLine+1), total: noAssembling}
}

// Next returns the next message, which the caller then owns. It skips lines that are not
// JSON objects. It returns io.EOF at the end of the input; any other error is one of r, or a
// violation of the framing. Errors are final.
func (l *LineReader) Next() ([]byte, error) {
	for l.err == nil {
		line, err := l.line()
		if err != nil {
			l.err = err
			break
		}
		var msg []byte
		if msg, l.err = l.take(line); msg != nil {
			return msg, nil
		}
	}
	return nil, l.err
}

// line returns the next line; the last one may lack its newline. It is valid until the next
// call.
func (l *LineReader) line() ([]byte, error) {
	line, err := l.r.ReadSlice('\n')
	switch {
	case err == nil:
		return line[:len(line)-1], nil
	case errors.Is(err, bufio.ErrBufferFull):
		return nil, fmt.Errorf("reading a line: it is longer than %d bytes: send a long message in pieces", maxLine)
	case err == io.EOF && len(line) > 0:
		return line, nil
	case err == io.EOF && l.total != noAssembling:
		return nil, io.ErrUnexpectedEOF
	}
	return nil, err
}

// take returns the message that line contains or completes, or nil.
func (l *LineReader) take(line []byte) (msg []byte, err error) {
	kind, ok := kindOf(line)
	switch {
	case !ok:
		return nil, nil
	case kind == chunkStart:
		err = l.start(line)
	case kind == chunkData:
		err = l.piece(line)
	case kind == chunkEnd:
		msg, err = l.end()
	case l.total != noAssembling:
		err = errors.New("another line comes before its chunk_end")
	default:
		return bytes.Clone(line), nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading a message in pieces: %w", err)
	}
	return msg, nil
}

// kindOf returns the member "type" of a line; ok is false if the line is not a JSON object
// in UTF-8.
func kindOf(line []byte) (kind string, ok bool) {
	m := object(line)
	for m.next() {
		if string(m.name) == "type" {
			kind, _ = field{raw: m.value}.str()
		}
	}
	return kind, m.err == nil && utf8.Valid(line)
}

func (l *LineReader) start(line []byte) error {
	total, big, ok := field{raw: Value(line, "total_size")}.literal()
	switch {
	case l.total != noAssembling:
		return errors.New("another chunk_start comes before its chunk_end")
	case !ok || big || total < 0 || total > MaxMessage:
		return fmt.Errorf("total_size: want an integer from 0 to %d", MaxMessage)
	}
	l.total, l.pieces, l.msg = int(total), 0, nil
	return nil
}

func (l *LineReader) piece(line []byte) error {
	data := field{ValueError, "data", Value(line, "data")}
	offset, _, ok := field{raw: Value(line, "offset")}.literal()
	if l.pieces++; l.total == noAssembling {
		return errors.New("chunk_data without chunk_start")
	}
	if data.raw == nil {
		return errors.New("data: is missing: it is required")
	}
	text, err := data.str()
	switch {
	case err != nil:
		return err
	case !ok || offset != int64(len(l.msg)):
		return fmt.Errorf("offset: want %d, the number of bytes so far", len(l.msg))
	case len(text) > l.total-len(l.msg):
		return fmt.Errorf("it is longer than the %d bytes announced", l.total)
	case l.pieces > maxPieces:
		return fmt.Errorf("more than %d pieces", maxPieces)
	}
	l.msg = append(l.msg, text...)
	return nil
}

func (l *LineReader) end() ([]byte, error) {
	switch {
	case l.total == noAssembling:
		return nil, errors.New("chunk_end without chunk_start")
	case len(l.msg) != l.total:
		return nil, fmt.Errorf("it has %d bytes, %d were announced", len(l.msg), l.total)
	}
	msg := l.msg
	l.total, l.msg = noAssembling, nil
	if m := object(msg); m.err != nil {
		return nil, nil
	}
	return msg, nil
}

// WriteMessage writes msg, a JSON text in UTF-8, with one Write: as one line, or as several
// if it is long.
func WriteMessage(w io.Writer, msg []byte) error {
	if len(msg) > MaxMessage {
		return fmt.Errorf("writing a message: %d bytes: at most %d", len(msg), MaxMessage)
	}
	out := make([]byte, 0, len(msg)+len(msg)/4+256)
	if len(msg) <= maxWhole {
		for _, c := range msg {
			if c == '\n' || c == '\r' {
				c = ' ' // in a JSON text, line breaks occur only between tokens
			}
			out = append(out, c)
		}
		_, err := w.Write(append(out, '\n'))
		return err
	}
	out = append(out, `{"type":"chunk_start","total_size":`...)
	out = append(strconv.AppendInt(out, int64(len(msg)), 10), "}\n"...)
	for at := 0; at < len(msg); {
		end := at + pieceLen(msg[at:])
		out = append(out, `{"type":"chunk_data","data":`...)
		out = appendQuoted(out, msg[at:end])
		out = append(out, `,"offset":`...)
		out = append(strconv.AppendInt(out, int64(at), 10), "}\n"...)
		at = end
	}
	out = append(out, `{"type":"chunk_end"}`+"\n"...)
	_, err := w.Write(out)
	return err
}

// pieceLen returns the length of the first piece of b. It does not cut a character.
func pieceLen(b []byte) int {
	if len(b) <= maxWhole {
		return len(b)
	}
	n := maxWhole
	for n > maxWhole-utf8.UTFMax && !utf8.RuneStart(b[n]) {
		n--
	}
	return n
}

// appendQuoted appends s as a JSON string.
func appendQuoted(out, s []byte) []byte {
	const hex = "0123456789abcdef"
	out = append(out, '"')
	for _, c := range s {
		switch {
		case c == '"' || c == '\\':
			out = append(out, '\\', c)
		case c == '\n':
			out = append(out, '\\', 'n')
		case c < 0x20:
			out = append(out, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		default:
			out = append(out, c)
		}
	}
	return append(out, '"')
}
