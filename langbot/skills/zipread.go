package skills

import (
	"context"
	"errors"
	"io"
)

// entryReader reads an entry. It fails unless the entry has exactly the size and the checksum that
// the archive declares.
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
	return badZip("the contents of an entry are not those that the archive declares: " + quote(e.name))
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
