package skills

import (
	"bytes"
	"encoding/binary"
	"io"
)

// Package archive/zip reads the archives. The code in this file reads their structure once more,
// strictly and before anything is unpacked, and refuses an archive that two readers could
// understand in two ways. The layouts are those of APPNOTE.TXT 6.3: 4.3.7 (local header), 4.3.12
// (central directory), 4.3.16 (its end).

const (
	localSize   = 30
	centralSize = 46
	endSize     = 22
	maxComment  = 1<<16 - 1

	localMagic   = 0x04034b50
	centralMagic = 0x02014b50
	endMagic     = 0x06054b50

	flagEncrypted  = 1<<0 | 1<<6 | 1<<13 // also strong encryption, and a masked directory
	flagDescriptor = 1 << 3              // the sizes follow the data
	flagUTF8       = 1 << 11

	saturated16, saturated32 = 1<<16 - 1, 1<<32 - 1 // the value is in a zip64 record
)

// zipRecord is an entry as the central directory describes it.
type zipRecord struct {
	name          string // unchanged
	flags, method uint16
	sum           uint32 // CRC-32
	packed, size  int64
	header, data  int64 // offsets of its local header and of its bytes
}

const errZip = refusal("Uploaded file must be a valid .zip archive")

func badZip(why string) error { return refuse("%s: %s", errZip, why) }

// walkZip reads the structure of an archive of at most limit entries.
func walkZip(r io.ReaderAt, size int64, limit int) ([]zipRecord, error) {
	end, at, err := findEnd(r, size)
	if err != nil {
		return nil, err
	}
	le := binary.LittleEndian
	here, total := le.Uint16(end[8:]), le.Uint16(end[10:])
	dirSize, dirAt := int64(le.Uint32(end[12:])), int64(le.Uint32(end[16:]))
	switch {
	case here == saturated16 || dirSize == saturated32 || dirAt == saturated32:
		return nil, badZip("it is in zip64 format, which archives of this size do not need")
	case le.Uint16(end[4:]) != 0 || le.Uint16(end[6:]) != 0 || here != total:
		return nil, badZip("it is one part of several")
	case dirAt+dirSize != at:
		return nil, badZip("its directory is not where it must be")
	case int(total) > limit:
		return nil, refuse("Uploaded archive has too many entries: %d, which exceeds %d", total, limit)
	}
	// The directory lies within the file, so this allocates no more than the file's size.
	dir := make([]byte, dirSize)
	if _, err := r.ReadAt(dir, dirAt); err != nil {
		return nil, badZip("its directory cannot be read")
	}
	records := make([]zipRecord, 0, total)
	for range total {
		rec, length, err := parseRecord(dir)
		if err != nil {
			return nil, err
		}
		if err := rec.checkLocal(r, dirAt); err != nil {
			return nil, err
		}
		records = append(records, rec)
		dir = dir[length:]
	}
	if len(dir) != 0 {
		return nil, badZip("its directory has more than the entries that it declares")
	}
	return records, nil
}

// findEnd returns the record at the end of an archive and its offset: the last record whose comment
// ends with the file.
func findEnd(r io.ReaderAt, size int64) (end []byte, at int64, err error) {
	n := min(size, endSize+maxComment)
	tail := make([]byte, n)
	if _, err := r.ReadAt(tail, size-n); err != nil {
		return nil, 0, badZip("it cannot be read")
	}
	magic := binary.LittleEndian.AppendUint32(nil, endMagic)
	for i := len(tail) - endSize; i >= 0; i-- {
		if !bytes.HasPrefix(tail[i:], magic) {
			continue
		}
		if comment := int(binary.LittleEndian.Uint16(tail[i+20:])); i+endSize+comment == len(tail) {
			return tail[i : i+endSize], size - n + int64(i), nil
		}
	}
	return nil, 0, errZip
}

// parseRecord reads the first record of a central directory, and returns its length.
func parseRecord(dir []byte) (zipRecord, int, error) {
	le := binary.LittleEndian
	if len(dir) < centralSize || le.Uint32(dir) != centralMagic {
		return zipRecord{}, 0, badZip("its directory has fewer entries than it declares")
	}
	name := int(le.Uint16(dir[28:]))
	length := centralSize + name + int(le.Uint16(dir[30:])) + int(le.Uint16(dir[32:]))
	if len(dir) < length {
		return zipRecord{}, 0, badZip("its directory ends within an entry")
	}
	rec := zipRecord{
		name:  string(dir[centralSize : centralSize+name]),
		flags: le.Uint16(dir[8:]), method: le.Uint16(dir[10:]), sum: le.Uint32(dir[16:]),
		packed: int64(le.Uint32(dir[20:])), size: int64(le.Uint32(dir[24:])), header: int64(le.Uint32(dir[42:])),
	}
	if rec.packed == saturated32 || rec.size == saturated32 || rec.header == saturated32 {
		return rec, 0, badZip("it is in zip64 format, which archives of this size do not need")
	}
	return rec, length, nil
}

// checkLocal compares a record with the local header before the entry's bytes, and checks that these
// end before dirAt.
func (rec *zipRecord) checkLocal(r io.ReaderAt, dirAt int64) error {
	le := binary.LittleEndian
	head := make([]byte, localSize+len(rec.name))
	if rec.header+int64(len(head)) > dirAt {
		return badZip("an entry is outside of it")
	}
	if _, err := r.ReadAt(head, rec.header); err != nil {
		return badZip("an entry is outside of it")
	}
	name, extra := int(le.Uint16(head[26:])), int64(le.Uint16(head[28:]))
	if le.Uint32(head) != localMagic || name != len(rec.name) || string(head[localSize:]) != rec.name ||
		le.Uint16(head[8:]) != rec.method || (le.Uint16(head[6:])^rec.flags)&(flagEncrypted|flagDescriptor|flagUTF8) != 0 {
		return badZip("its directory and an entry contradict each other")
	}
	sum, packed, size := le.Uint32(head[14:]), le.Uint32(head[18:]), le.Uint32(head[22:])
	same := sum == rec.sum && (packed == saturated32 || int64(packed) == rec.packed) && (size == saturated32 || int64(size) == rec.size)
	if rec.flags&flagDescriptor == 0 && !same {
		return badZip("its directory and an entry contradict each other")
	}
	rec.data = rec.header + int64(len(head)) + extra
	if rec.data+rec.packed > dirAt {
		return badZip("an entry is outside of it")
	}
	return nil
}
