// Package files carries out one file operation inside a box, as an ordinary command
// of it: with the rights of the command's user, its limits and its view of the
// file system. Package files at the top of this module asks for it.
//
// It is not a boundary: whatever it does, any command of the box could do as well.
// So it answers the other side, and the other side believes nothing.
package files
