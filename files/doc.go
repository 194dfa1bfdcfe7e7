// Package files reads and writes files inside a box. Each operation is a command of
// the box, so it is done there, as the box's user, within the box's limits and view:
// never by path from outside. What comes back is bounded and believed no more than
// the output of any other command.
//
// A path is absolute or relative to the workspace, or to the home directory where
// there is none. Symlinks are followed as they lead inside the box. A name may hold
// any bytes but "/" and NUL.
package files
