package files

import (
	"archive/tar"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/boxd/boxd/agent/files/proto"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/glob"
)

// PackOptions control Pack. The zero value packs everything.
type PackOptions struct {
	// Globs choose the entries to pack, by paths relative to the directory: names are patterns of
	// path.Match, and "**" stands for any number of directories. A directory that matches
	// stands for everything in it. None means everything.
	Globs []string
	// MaxBytes limits the archive; 0 means DefaultSize. A larger tree is ErrTooLarge.
	MaxBytes int64
}

// LeftOut is the record of a global header of an archive that Pack has written. It names a
// file that the archive does not have: its type as in [Info], a space and its name.
const LeftOut = proto.LeftOut

// Pack writes the content of the directory at path to w, as a tar archive: files, directories
// and symlinks with their permission bits and times. Names are relative to the directory, and a
// directory comes before its entries. Owners are not kept, hard links are files of their own,
// and other files are left out ([LeftOut]).
//
// The box first looks at the whole tree, so an error that can be foreseen comes before the
// first byte. An archive without its end, two blocks of zeros, is incomplete.
//
// The archive is not the one that the box sent but a copy, with nothing in it that was not
// checked: no name leads out of the directory, no name occurs twice, and what a file is in is a
// directory of the archive.
func Pack(ctx context.Context, box engine.Box, o Options, path string, p PackOptions, w io.Writer) error {
	most := cmp.Or(p.MaxBytes, DefaultSize)
	if err := errors.Join(notNegative("max_bytes", most), checkGlobs("glob", p.Globs)); err != nil {
		return err
	}
	out := tar.NewWriter(w)
	copied := func(h *tar.Header, content io.Reader) error {
		if err := out.WriteHeader(h); err != nil {
			return err
		}
		_, err := io.Copy(out, content)
		return err
	}
	if _, err := pack(ctx, box, o, path, proto.Pack{Globs: p.Globs, MaxBytes: most}, copied); err != nil {
		return err
	}
	return out.Close()
}

// pack has the box pack a directory, and calls each for every entry of the archive that it
// sends, once the entry was checked.
func pack(ctx context.Context, box engine.Box, o Options, path string, q proto.Pack, each func(*tar.Header, io.Reader) error) (proto.Reply, error) {
	option, err := json.Marshal(q)
	if err != nil {
		return proto.Reply{}, err
	}
	in, out := io.Pipe()
	// Headers can take as much of an archive as the content of files does: an
	// empty file takes a block or two.
	r := request{verb: "packing", path: path, args: []string{"pack", path, string(option)}, out: &bounded{w: out, left: 4*q.MaxBytes + proto.MaxChunk}}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	checked := make(chan error, 1)
	go func() {
		err := readTree(in, q.MaxBytes, q.Made != nil, each)
		in.CloseWithError(cmp.Or(err, io.ErrClosedPipe))
		if err != nil {
			cancel(err) // nothing more is expected of the box
		}
		checked <- err
	}()
	reply, err := r.run(ctx, box, o)
	out.CloseWithError(cmp.Or(err, io.EOF))
	failed := <-checked
	switch {
	case err != nil && (failed == nil || errors.Is(failed, err)):
		if errors.Is(err, syscall.EFBIG) {
			err = fmt.Errorf("packing %s: %w: the archive has more than %s: choose a part with glob, or pack less at once", spec.Quote(path), ErrTooLarge, spec.FormatSize(q.MaxBytes))
		}
		return reply, err
	case errors.Is(failed, proto.ErrProtocol):
		return reply, r.disturbed(failed)
	}
	return reply, failed
}

// readTree reads the archive of an untrusted box and calls each for its entries, which have
// nothing but what was checked. The content of all files has at most left bytes.
func readTree(r io.Reader, left int64, omitted bool, each func(*tar.Header, io.Reader) error) error {
	archive := tar.NewReader(r)
	var o order
	for {
		h, err := archive.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return odd(err)
		}
		if err := checkEntry(h, &o, omitted); err != nil {
			return err
		}
		if left -= h.Size; left < 0 {
			return fmt.Errorf("the archive is longer than was asked for: %w", proto.ErrProtocol)
		}
		if err := each(clean(h), oddReader{archive}); err != nil {
			return err
		}
	}
	if _, err := io.Copy(io.Discard, r); err != nil { // the padding of the archive
		return odd(err)
	}
	return nil
}

// odd is err, marked as a fault of the archive if it is one.
func odd(err error) error {
	if errors.Is(err, tar.ErrHeader) || errors.Is(err, tar.ErrFieldTooLong) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("reading the archive: %w: %w", proto.ErrProtocol, err)
	}
	return err
}

type oddReader struct{ r io.Reader }

func (o oddReader) Read(p []byte) (int, error) {
	n, err := o.r.Read(p)
	if err != nil && err != io.EOF {
		err = odd(err)
	}
	return n, err
}

// checkEntry checks an entry of a box's archive. omitted says whether the content of a file may be
// missing.
func checkEntry(h *tar.Header, o *order, omitted bool) error {
	bad := func(rule string) error {
		return fmt.Errorf("entry %s of the archive: %s: %w", spec.Quote(h.Name), rule, proto.ErrProtocol)
	}
	switch h.Typeflag {
	case tar.TypeXGlobalHeader:
		kind, name, _ := strings.Cut(h.PAXRecords[LeftOut], " ")
		if kind != "fifo" && kind != "socket" && kind != "device" || checkPath("path", name) != nil {
			return bad("names no file that was left out")
		}
		return nil
	case tar.TypeSymlink:
		if rule := brokenRule(h.Linkname); rule != "" {
			return bad("its target " + rule)
		}
	case tar.TypeReg, tar.TypeDir:
	default:
		return bad("is of a type that was not asked for")
	}
	if h.Size < 0 || h.Typeflag != tar.TypeReg && h.Size != 0 {
		return bad("has an impossible size")
	}
	if text, ok := h.PAXRecords[proto.OmittedSize]; ok {
		size, err := strconv.ParseInt(text, 10, 64)
		if err != nil || size < 0 || h.Size != 0 || h.Typeflag != tar.TypeReg || !omitted {
			return bad("is left out with an impossible size")
		}
	}
	if !o.next(strings.TrimSuffix(h.Name, "/"), h.Typeflag == tar.TypeDir) {
		return bad("is out of place")
	}
	return nil
}

// clean returns a header that has only the checked fields of an entry.
func clean(h *tar.Header) *tar.Header {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return &tar.Header{Typeflag: h.Typeflag, PAXRecords: map[string]string{LeftOut: h.PAXRecords[LeftOut]}}
	}
	c := &tar.Header{
		Typeflag: h.Typeflag, Name: strings.TrimSuffix(h.Name, "/"), Size: h.Size, Mode: h.Mode & 0o777,
		ModTime: timeOf(h.ModTime.Unix(), 0),
	}
	switch h.Typeflag {
	case tar.TypeDir:
		c.Name += "/"
	case tar.TypeSymlink:
		c.Linkname = h.Linkname
	}
	if size, ok := h.PAXRecords[proto.OmittedSize]; ok {
		c.PAXRecords = map[string]string{proto.OmittedSize: size}
	}
	return c
}

// order is the order of the entries of an archive: a directory is followed by its entries,
// sorted by name. So an archive of any length can be checked to be a tree.
type order struct {
	open []string // the directory that the last entry is, or is in
	last []string // the last name at each level, down to the entries of open
}

// next reports whether an entry may follow.
func (o *order) next(name string, dir bool) bool {
	if checkPath("name", name) != nil {
		return false
	}
	names := strings.Split(name, "/")
	level := len(names) - 1
	if level > len(o.open) {
		return false
	}
	for i, n := range names {
		if !isName(n) || i < level && n != o.open[i] {
			return false
		}
	}
	if len(o.last) > level && names[level] <= o.last[level] {
		return false
	}
	o.last = append(o.last[:level], names[level])
	o.open = o.open[:level]
	if dir {
		o.open = append(o.open, names[level])
	}
	return true
}

// UnpackOptions control Unpack. The zero value unpacks everything.
type UnpackOptions struct {
	Globs []string // as in PackOptions
	// MakeParents creates the directory, and those above it, if it is missing.
	MakeParents bool
	// New, if not 0, holds the permission bits with which the directory is made. An existing one
	// is fs.ErrExist.
	New uint32
	// MaxBytes limits the archive, and the content of its files; 0 means DefaultSize. More
	// is ErrTooLarge.
	MaxBytes int64

	outside string // as in proto.Unpack
}

// Tree counts what was unpacked.
type Tree struct {
	Files       int64 `json:"files"`
	Directories int64 `json:"directories"`
	Symlinks    int64 `json:"symlinks"`
	Bytes       int64 `json:"bytes"`
	Skipped     int64 `json:"skipped"` // devices, FIFOs and the like
}

// Unpack unpacks a tar archive into the directory at path. It is read in the box. Missing
// directories of the archive are made; existing ones keep their mode, and a new one can be
// written to by its owner. Each file is replaced atomically, gets the permission bits and time
// of the archive, and belongs to the user who unpacks. Neither a name nor a symlink leads out
// of the directory. After an error, what was unpacked before stays.
//
// As in Write, one call of content.Read may still be in progress after an error.
func Unpack(ctx context.Context, box engine.Box, o Options, path string, content io.Reader, u UnpackOptions) (Tree, error) {
	most := cmp.Or(u.MaxBytes, DefaultSize)
	if err := errors.Join(notNegative("max_bytes", most), checkMode(u.New), checkGlobs("glob", u.Globs)); err != nil {
		return Tree{}, err
	}
	option, err := json.Marshal(proto.Unpack{Globs: u.Globs, MaxBytes: most, Parents: u.MakeParents, New: u.New, Outside: u.outside})
	if err != nil {
		return Tree{}, err
	}
	in := &source{r: content, left: most}
	r := request{verb: "unpacking into", path: path, in: in, args: []string{"unpack", path, string(option)}}
	r.relative = u.outside != "" && !strings.HasPrefix(u.outside, "/")
	reply, err := r.run(ctx, box, o)
	failed := in.failure()
	switch {
	case errors.Is(failed, ErrTooLarge), err != nil && errors.Is(err, syscall.EFBIG):
		return Tree{}, fmt.Errorf("unpacking into %s: %w: the archive has more than %s", spec.Quote(path), ErrTooLarge, spec.FormatSize(most))
	case failed != nil:
		return Tree{}, fmt.Errorf("unpacking into %s: reading the archive: %w", spec.Quote(path), failed)
	case errors.Is(err, proto.Inside):
		return Tree{}, &engine.FieldError{Field: "path", Value: spec.Quote(path), Rule: "must not be the directory that is copied, nor in it"}
	case errors.Is(err, syscall.EBADMSG):
		return Tree{}, &engine.FieldError{Field: "archive", Value: "for " + spec.Quote(path), Rule: "must be a tar archive, complete and not compressed"}
	case err != nil:
		return Tree{}, err
	case reply.Tree == nil:
		return Tree{}, r.disturbed(errors.New("it does not count what was unpacked"))
	case min(reply.Tree.Files, reply.Tree.Directories, reply.Tree.Symlinks, reply.Tree.Bytes, reply.Tree.Skipped) < 0:
		return Tree{}, r.disturbed(errors.New("it counts less than nothing"))
	}
	return Tree(*reply.Tree), nil
}

func checkGlobs(field string, globs []string) error {
	if _, err := glob.Parse(globs); err != nil {
		return &engine.FieldError{Field: field, Value: spec.Quote(strings.Join(globs, " ")), Rule: err.Error()}
	}
	return nil
}

// Bounds of Made.
const (
	MadeFiles = 100     // files that it returns
	MadeBytes = 4 << 20 // of their content altogether
)

// MadeFile is a file that was made or changed.
type MadeFile struct {
	Path    string // relative to the directory
	Size    int64
	Mode    string // permission bits in octal
	ModTime time.Time
	// Omitted: Content is nil, because the file could not be read or did not fit.
	Omitted bool
	Content []byte
}

// Made returns the regular files below the directory at path that match globs and were made,
// changed or renamed at since or later, sorted by path, with their content. There are at most
// MadeFiles of them, with MadeBytes altogether: truncated reports that there are more files,
// and MadeFile.Omitted that the content of a file is missing. Files that the user may not
// reach are left out.
//
// since is compared with the times that the kernel gives to files, which lag behind its clock.
func Made(ctx context.Context, box engine.Box, o Options, path string, globs []string, since time.Time) (made []MadeFile, truncated bool, err error) {
	if err := checkGlobs("outputs", globs); err != nil {
		return nil, false, err
	}
	q := proto.Pack{Globs: globs, MaxBytes: MadeBytes, Made: &proto.Made{Sec: since.Unix(), Nsec: int64(since.Nanosecond()), Files: MadeFiles}}
	reply, err := pack(ctx, box, o, path, q, func(h *tar.Header, content io.Reader) error {
		if h.Typeflag != tar.TypeReg {
			return nil // a directory on the way to one
		}
		if len(made) == MadeFiles {
			return fmt.Errorf("more files than were asked for: %w", proto.ErrProtocol)
		}
		f := MadeFile{Path: h.Name, Size: h.Size, Mode: fmt.Sprintf("%04o", h.Mode), ModTime: h.ModTime}
		if text, ok := h.PAXRecords[proto.OmittedSize]; ok {
			f.Size, _ = strconv.ParseInt(text, 10, 64) // was checked
			f.Omitted = true
		} else if f.Content, err = io.ReadAll(content); err != nil {
			return err
		}
		made = append(made, f)
		return nil
	})
	if err != nil {
		return nil, false, err
	}
	return made, reply.Truncated, nil
}

// CheckOutputs checks the patterns of Made before a command runs.
func CheckOutputs(globs []string) error { return checkGlobs("outputs", globs) }
