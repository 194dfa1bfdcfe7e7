// Package audit keeps an append-only log of requests, decisions and outcomes: JSON lines
// that form a hash chain across rotated files. Its callers decide what is logged, and what
// happens when the log cannot be written.
//
// # Format
//
// Every line is one JSON object. "seq" grows by one from line to line and never restarts.
// "prev" is the "hash" of the line before, which may be in the file before; the first line of
// all has 64 zeros. "hash" is the last key: the SHA-256, in hexadecimal, of the bytes of the
// line before `,"hash":`. So one hash is enough to tell whether its line, or any line before
// it, has changed.
//
// The current file is PATH; full files are PATH.1, PATH.2 and so on, the oldest first. Each
// file starts with an "anchor", a line with the number of the file and the number of the
// oldest file kept. A partial line that a crash left stays where it is, and is followed by a
// line of kind "torn" with its length and digest.
//
// # What Verify proves
//
// Verify finds every edit, deletion, insertion and reordering between the oldest file and
// the last line, and every missing file that was to be kept. It does not miss the files that
// were deleted because there were too many: the chain starts at the anchor of the oldest
// file. Verify alone cannot tell that lines were cut off at the end, or that the whole chain
// was rewritten. For that, compare with a [Head] that was kept elsewhere; see [Verify].
//
// # Durability
//
// Each line is one write(2) on a descriptor opened with O_APPEND: once Append has returned,
// the line survives the death of the process. Lines are not synced to disk one by one, so a
// crash of the kernel can lose those of the last seconds, unless Options.Sync is set.
// Rotation and Close sync.
package audit
