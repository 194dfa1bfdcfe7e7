// Package files carries out one file operation inside a box, as an ordinary command of
// the box: with the rights of the command's user, its limits and its view of the file
// system. Package files at the top of this module requests it.
//
// It is not a security boundary: any command of the box could do the same. So the
// other side does not trust its answers.
package files
