// Package engine says what a box is: the values a caller hands in ([Spec],
// [Command], [Change]), what comes back ([Result], [Receipt], [Verdict]), the
// errors, and the small interfaces that an engine implements.
//
// It knows no kernel: building, limiting and running is done by the packages
// below it (engine/native). Programs that embed boxd import this package for
// the values and engine/native for the implementation.
package engine
