// Package history keeps what ran in sessions: one entry for each command and managed process that
// has ended, and usage counters that add up the entries.
//
// It does not know sessions. Its caller decides what an entry says, and may keep entries of
// sessions that are gone.
//
// # Files
//
// Append writes an entry to a journal with one write(2) and no sync: the entry survives the death of
// this process, but not a power failure. A goroutine moves entries from the journal to a
// database in batches. Each entry has a sequence number, and the same transaction that stores a batch
// also stores the last number in it. So after a crash Open continues with what the database lacks,
// and nothing is counted twice.
//
// A journal consists of files that are called after the first sequence number that they may have.
// A file is a sequence of frames, big-endian:
//
//	length   uint32  of the body, at most maxBody
//	checksum uint32  CRC-32 (IEEE) of number and body
//	number   uint64  sequence number
//	body             an Entry as JSON
//
// A reader ignores everything from the first invalid frame on: Append was interrupted there, so its
// caller was not told that the entry is safe. Nothing is ever written behind such a frame.
package history
