package files

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
)

// Copy copies a file, or the content of a directory, from one box to another, or within one.
// A file at path is replaced; a directory at path is made if it is missing. o applies to the
// operation in each box, p to directories only, except for MaxBytes. Symlinks are followed at
// source, and copied below it.
func Copy(ctx context.Context, from engine.Box, source string, to engine.Box, path string, o Options, p PackOptions) (Tree, error) {
	if err := checkPath("path", path); err != nil { // before from is asked
		return Tree{}, err
	}
	info, err := Stat(ctx, from, o, source)
	if err != nil {
		return Tree{}, err
	}
	most := cmp.Or(p.MaxBytes, DefaultSize)
	r, w := io.Pipe()
	var send func() error
	switch info.Type {
	case "dir":
		send = func() error { return Pack(ctx, from, o, source, p, w) }
	case "file":
		if info.Size > most {
			return Tree{}, fmt.Errorf("copying %s: %w: the file has %s, and at most %s are copied", spec.Quote(source), ErrTooLarge, spec.FormatSize(info.Size), spec.FormatSize(most))
		}
		send = func() error { _, err := Read(ctx, from, o, source, 0, most, w); return err }
	default:
		return Tree{}, fmt.Errorf("copying %s: %w but a %s", spec.Quote(source), ErrNotRegular, info.Type)
	}
	sent := make(chan error, 1)
	go func() {
		err := send()
		w.CloseWithError(err)
		sent <- err
	}()
	var tree Tree
	if info.Type == "dir" {
		// An archive is somewhat longer than the content of its files.
		u := UnpackOptions{MakeParents: true, MaxBytes: 4 * most}
		if from.ID() == to.ID() {
			u.outside = source
		}
		tree, err = Unpack(ctx, to, o, path, r, u)
	} else {
		mode, _ := strconv.ParseUint(info.Mode, 8, 32) // the form was checked
		var made Info
		made, err = Write(ctx, to, o, path, r, WriteOptions{Mode: uint32(mode & 0o777), MaxBytes: most})
		tree = Tree{Files: 1, Bytes: made.Size}
	}
	r.Close()
	if failed := <-sent; failed != nil && !errors.Is(failed, io.ErrClosedPipe) {
		return Tree{}, failed
	}
	if err != nil {
		return Tree{}, err
	}
	return tree, nil
}
