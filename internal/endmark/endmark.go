// Package endmark tells a whole tar archive from one that was cut off between two members. A whole archive ends with
// two blocks of 512 zero bytes (POSIX.1-2024, pax, "ustar Interchange Format"), but archive/tar also accepts an archive
// without them.
package endmark

import (
	"bytes"
	"errors"
	"io"
)

const block = 512 // bytes

// ErrCut says that an archive ends without its end mark.
var ErrCut = errors.New("the archive ends without its end mark: it was cut off")

// Reader returns the bytes of archive for [archive/tar.NewReader], which then reaches io.EOF only if the archive
// ends with a block of zero bytes, and else fails, with ErrCut wherever a member could begin. Like GNU tar it accepts
// one such block instead of two.
func Reader(archive io.Reader) io.Reader {
	// This block completes an end mark that has only one, and is too short to be a mark itself.
	return io.MultiReader(archive, bytes.NewReader(make([]byte, block)), cut{})
}

type cut struct{}

func (cut) Read([]byte) (int, error) { return 0, ErrCut }
