// Package files reads, writes, lists, renames and removes files inside a box, and packs and
// unpacks trees.
//
// Every operation runs as a command of the box: it has the rights of the box's user,
// sees the box's mounts, and counts towards the box's limits. No file is opened by
// path from outside, so a symlink in the box cannot lead to a file of the host. The
// box's answer is untrusted: its size is bounded, its form is checked, and a box whose
// processes forge answers can only lie about its own files.
//
// A path is absolute, or relative to the workspace; without a workspace it is relative
// to the home directory. Symlinks are resolved as they appear inside the box. A name
// may contain any byte but "/" and NUL, and need not be valid UTF-8.
//
// The package needs only an [engine.Box], so it works with any engine. It is meant
// for files of moderate size: an operation costs about as much as a command, and is
// bounded by [DefaultTimeout] and [DefaultSize] unless the caller raises them. To give
// a box a large tree, mount it (engine.Spec.Mounts, engine.Box.Update).
package files
