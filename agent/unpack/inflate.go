package unpack

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
)

// streamBuffer is the size of a read or write of a stream.
const streamBuffer = 256 << 10

// maxWindow is how far back a zstd stream may refer, and so how much memory it takes: as much as zstd(1)
// decompresses without being told to take more.
const maxWindow = 128 << 20

// inflate writes what in holds to out: decompressed if it begins as gzip or zstd does, else as it is. Several
// streams one after the other are one. An archive of more than limit bytes is refused.
func inflate(out io.Writer, in io.Reader, limit int64) error {
	source := &source{Reader: bufio.NewReaderSize(in, streamBuffer)}
	magic, err := source.Peek(4)
	if err != nil && err != io.EOF {
		return fmt.Errorf("reading the archive: %w", err)
	}
	var plain io.Reader = source
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		if plain, err = gzip.NewReader(source); err != nil {
			return source.explain("decompressing the archive", err)
		}
	case isZstd(magic):
		d, err := zstd.NewReader(source, zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderConcurrency(1))
		if err != nil {
			return source.explain("decompressing the archive", err)
		}
		defer d.Close()
		plain = d
	}
	buf := make([]byte, streamBuffer)
	for total := int64(0); ; {
		var n int
		for err = nil; n < len(buf) && err == nil; {
			var m int
			m, err = plain.Read(buf[n:])
			n += m
		}
		if total += int64(n); total > limit {
			return refuse("archive: larger than %d bytes when decompressed", limit)
		}
		if _, err := out.Write(buf[:n]); err != nil {
			return fmt.Errorf("writing the decompressed archive: %w", err)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return source.explain("decompressing the archive", err)
		}
	}
}

// isZstd reports whether a stream begins with a frame of zstd, or with one to skip (RFC 8878, section 3.1).
func isZstd(magic []byte) bool {
	if len(magic) < 4 {
		return false
	}
	n := binary.LittleEndian.Uint32(magic)
	return n == 0xfd2fb528 || n&^0xf == 0x184d2a50
}

// source is the compressed stream. It remembers that reading it failed, because an error of a decompressor does
// not tell that from a damaged stream.
type source struct {
	*bufio.Reader
	failed error
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p)
	if err != nil && err != io.EOF {
		s.failed = err
	}
	return n, err
}

// ReadByte makes flate read no further than its stream.
func (s *source) ReadByte() (byte, error) {
	b, err := s.Reader.ReadByte()
	if err != nil && err != io.EOF {
		s.failed = err
	}
	return b, err
}

// explain says what failed: action ended with err.
func (s *source) explain(action string, err error) error {
	if s.failed != nil {
		return fmt.Errorf("reading the archive: %w", s.failed)
	}
	return corrupt("%s: %w", action, err)
}
