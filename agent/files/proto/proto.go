// Package proto is the protocol between the two halves of a file operation. It contains no
// operation and no policy.
//
// The operation and its path are arguments:
//
//	read    PATH OFFSET LIMIT
//	write   PATH MODE append|replace parents|-
//	list    PATH MOST
//	stat    PATH
//	remove  PATH recursive|-
//	mkdir   PATH MODE parents|-
//	symlink PATH TARGET
//	rename  PATH TO replace|-
//	pack    PATH PACK
//	unpack  PATH UNPACK
//	watch   PATH WATCH
//
// Numbers are decimal; MODE is octal, and 0 means "unchanged" or the default. PACK, UNPACK and
// WATCH are the JSON of the types of these names. For write and unpack, stdin carries the content in chunks: a length of 4 bytes, big endian, followed by that
// many bytes, at most MaxChunk. A length of 0 ends the content; without it the content is
// incomplete.
//
// stdout carries the bytes that were read, or one Info as a line of JSON for each entry of a
// directory, or a tar archive of the content of a directory. Its names are relative to the
// directory, which has no entry itself. A directory comes before its entries, which are sorted
// by the bytes of their names. Or, for watch, stdout carries one Change as a line of JSON for
// each change, until the command is killed or the directory is gone. At the end, stderr carries one line of JSON: a Reply.
package proto

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"syscall"
)

// Bounds of the conversation, in bytes.
const (
	MaxChunk = 64 << 10
	// MaxInfo is the length of the longest line about one file: the longest name and the
	// longest symlink, in base64, and numbers.
	MaxInfo  = 8 << 10
	MaxReply = 2 * MaxInfo
)

// ChunkHeader is the length of the length before a chunk.
const ChunkHeader = 4

// Info describes a file. Names are bytes, in JSON as base64, because they need not be
// text.
type Info struct {
	Name   []byte `json:"name,omitempty"` // in a listing
	Size   int64  `json:"size"`
	Mode   uint32 `json:"mode"` // with the type, as of stat(2)
	Sec    int64  `json:"sec"`  // last change of the content
	Nsec   int64  `json:"nsec"`
	UID    uint32 `json:"uid"`
	GID    uint32 `json:"gid"`
	Target []byte `json:"target,omitempty"` // of a symlink
}

// Failure reports which step failed and why.
type Failure struct {
	Step string `json:"step,omitempty"` // empty for the operation itself
	// Path is the path on which the step failed, if it is not the requested one.
	Path  []byte        `json:"path,omitempty"`
	Errno syscall.Errno `json:"errno"`
	// Type is the S_IFMT bits of a file that should have been a regular file, or 0.
	Type uint32 `json:"type,omitempty"`
}

// Reply reports how the operation ended.
type Reply struct {
	Failure   *Failure `json:"failure,omitempty"`
	Info      *Info    `json:"info,omitempty"`
	Truncated bool     `json:"truncated,omitempty"` // there are more files than were listed
	Tree      *Tree    `json:"tree,omitempty"`      // what was unpacked
}

// Pack holds the options of pack.
type Pack struct {
	Globs    []string `json:"globs,omitempty"` // none: everything
	MaxBytes int64    `json:"max_bytes"`       // of the archive; a larger one is EFBIG
	Made     *Made    `json:"made,omitempty"`
}

// Made restricts pack to regular files that were made or changed at a time or later. It does
// not fail for files that it may not read or that are too large: they have no content, and
// their size is in the record [OmittedSize].
type Made struct {
	Sec   int64 `json:"sec"`
	Nsec  int64 `json:"nsec"`
	Files int   `json:"files"` // maximum number; Reply.Truncated says that there are more
}

// Records of the archive beyond POSIX.
const (
	// OmittedSize, with a file, is its size; its content is not in the archive.
	OmittedSize = "BOXD.omitted_size"
	// LeftOut, in a global header, names a file that has no place in an archive: its type, a
	// space and its name.
	LeftOut = "BOXD.left_out"
)

// Unpack says how an archive is unpacked.
type Unpack struct {
	Globs    []string `json:"globs,omitempty"` // none: everything
	MaxBytes int64    `json:"max_bytes"`       // of all files together; more is EFBIG
	Parents  bool     `json:"parents,omitempty"`
	// New, if not 0, is the mode with which the directory is made; it must not exist.
	New uint32 `json:"new,omitempty"`
	// Outside is a directory that the archive must not be unpacked into, nor into one below it;
	// that is Inside.
	Outside string `json:"outside,omitempty"`
}

// Inside is the error of [Unpack].Outside. No system call of an operation returns it.
const Inside = syscall.EDEADLK

// Tree counts what was unpacked.
type Tree struct {
	Files       int64 `json:"files"`
	Directories int64 `json:"directories"`
	Symlinks    int64 `json:"symlinks"`
	Bytes       int64 `json:"bytes"`
	Skipped     int64 `json:"skipped"` // devices, FIFOs and the like
}

// Watch holds the options of watch.
type Watch struct {
	Recursive bool     `json:"recursive,omitempty"`
	Globs     []string `json:"globs,omitempty"` // of the reported paths; none: everything
}

// Change is a change in a watched directory.
type Change struct {
	Type string `json:"type"`
	Path []byte `json:"path,omitempty"` // relative to the directory
	Dir  bool   `json:"dir,omitempty"`
}

// Types of a Change. The first is Ready: changes are reported from now on.
const (
	Ready      = "ready"
	Created    = "created"    // or moved to here
	Modified   = "modified"   // its content
	Attributes = "attributes" // its rights, owner or times
	Removed    = "removed"    // or moved away
	Missed     = "missed"     // some changes could not be reported
	Gone       = "gone"       // the directory itself was removed, moved or unmounted; the last change
)

// ParseChange parses a line of watch.
func ParseChange(line []byte) (Change, error) {
	var c Change
	if err := json.Unmarshal(line, &c); err != nil {
		return Change{}, fmt.Errorf("parsing change: %w: %w", ErrProtocol, err)
	}
	switch c.Type {
	case Ready, Missed, Gone:
		if len(c.Path) > 0 {
			return Change{}, fmt.Errorf("change %s of a file: %w", c.Type, ErrProtocol)
		}
	case Created, Modified, Attributes, Removed:
	default:
		return Change{}, fmt.Errorf("unknown type of change: %w", ErrProtocol)
	}
	return c, nil
}

// StepArchive is the step of a failure whose reason is that the archive is not one.
const StepArchive = "reading the archive"

// ErrProtocol: the data does not follow the rules of this package.
var ErrProtocol = errors.New("protocol error")

// ParseReply parses b, the complete stderr of an operation.
func ParseReply(b []byte) (Reply, error) {
	var r Reply
	if len(b) > MaxReply {
		return Reply{}, fmt.Errorf("reply of %d bytes: %w", len(b), ErrProtocol)
	}
	if err := json.Unmarshal(b, &r); err != nil {
		return Reply{}, fmt.Errorf("parsing reply: %w: %w", ErrProtocol, err)
	}
	if r.Failure != nil && (r.Failure.Errno == 0 || r.Failure.Errno > maxErrno) {
		return Reply{}, fmt.Errorf("error number %d: %w", r.Failure.Errno, ErrProtocol)
	}
	return r, nil
}

// maxErrno is MAX_ERRNO of the kernel's include/linux/err.h.
const maxErrno = 4095

// ParseList parses b, the complete stdout of list, which describes at most as many files as
// most says.
func ParseList(b []byte, most int) ([]Info, error) {
	var list []Info
	for len(b) > 0 {
		end := bytes.IndexByte(b[:min(len(b), MaxInfo)], '\n')
		if end < 0 || len(list) == most {
			return nil, fmt.Errorf("listing of more than %d lines of %d bytes: %w", most, MaxInfo, ErrProtocol)
		}
		var i Info
		if err := json.Unmarshal(b[:end], &i); err != nil {
			return nil, fmt.Errorf("parsing listing: %w: %w", ErrProtocol, err)
		}
		list, b = append(list, i), b[end+1:]
	}
	return list, nil
}

// ReadChunk reads a chunk into buf, which holds MaxChunk bytes. It returns io.EOF after
// complete content, and io.ErrUnexpectedEOF after incomplete content.
func ReadChunk(r io.Reader, buf []byte) ([]byte, error) {
	var head [ChunkHeader]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, notWhole(err)
	}
	n := binary.BigEndian.Uint32(head[:])
	switch {
	case n == 0:
		return nil, io.EOF
	case n > MaxChunk:
		return nil, fmt.Errorf("chunk of %d bytes: %w", n, ErrProtocol)
	}
	if _, err := io.ReadFull(r, buf[:n]); err != nil {
		return nil, notWhole(err)
	}
	return buf[:n], nil
}

func notWhole(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// PutHeader writes the header of a chunk of n bytes to b.
func PutHeader(b []byte, n int) { binary.BigEndian.PutUint32(b, uint32(n)) }
