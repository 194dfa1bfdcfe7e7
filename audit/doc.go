// Package audit keeps an append-only log of who asked what, what was decided and
// how it ended: JSON lines that form a hash chain across rotated files.
//
// It does not decide what is logged, nor what happens when the log cannot be
// written.
package audit
