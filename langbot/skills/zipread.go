package skills

import (
	"context"
	"errors"
	"io"
)

// entryReader reads an entry: exactly the bytes it is said to have, with the checksum it
// is said to have, or the read fails.
type entryReader struct {
	io.ReadCloser
	ctx  context.Context
	e    zipEntry
	left int64
}

func (e zipEntry) open(ctx context.Context) (*entryReader, error) {
	r, err := e.f.Open()
	if err != nil {
		return nil, e.bad()
	}
	return &entryReader{r, ctx, e, int64(e.f.UncompressedSize64)}, nil
}

func (e zipEntry) bad() error {
	return badZip("an entry does not have the contents that it is said to have: " + quote(e.name))
}

func (r *entryReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := r.ReadCloser.Read(p)
	if r.left -= int64(n); r.left < 0 {
		return 0, r.e.bad()
	}
	if err == nil || errors.Is(err, io.EOF) && r.left == 0 {
		return n, err
	}
	return n, r.e.bad()
}

// rest reads what nobody wanted, to the end.
func (r *entryReader) rest() error {
	_, err := io.Copy(io.Discard, r)
	return err
}
