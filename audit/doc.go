// Package audit keeps an append-only log of who asked what, what was decided and
// how it ended: JSON lines that form a hash chain across rotated files. It does not
// decide what is logged, nor what happens when the log cannot be written.
//
// # Format
//
// Every line is one JSON object. "seq" counts up by one from line to line and never
// starts again; "prev" is the "hash" of the line before, in the file before if need
// be, 64 zeros for the first of all. "hash" is the last key: the SHA-256, in
// hexadecimal, of the bytes of the line in front of `,"hash":`. So whoever has one
// hash can tell whether anything at or before that line has changed.
//
// The file being written is PATH; those that were full are PATH.1, PATH.2 and so on,
// by age. Each file starts with an "anchor", a line that says which number the file
// has and which was the oldest one kept. What a crash left of a line stays where it
// is and is followed by a line of kind "torn" with its length and digest.
//
// # What Verify proves
//
// An edit, a deletion, an insertion or a change of order between the oldest file and
// the last line is found, and so is a file that is missing although it was to be
// kept. Files that were deleted because there were too many of them are not missed:
// the chain starts at the anchor of the oldest one then. Not found without help is
// that lines were cut off at the end, or that somebody wrote the whole chain anew:
// compare with a [Head] that was kept elsewhere, see [Verify].
//
// # Durability
//
// Each line is one write(2) on a descriptor opened with O_APPEND: what Append has
// returned for survives the death of the process. It is not synced to disk one by
// one, so a crash of the kernel can lose the lines of the last seconds, unless
// Options.Sync is set. Rotation and Close sync.
package audit
