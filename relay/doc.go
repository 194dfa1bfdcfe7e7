// Package relay carries the streams of one process over a WebSocket: stdin, stdout,
// stderr, window size, signals and the exit. A connection can be lost and resumed at any
// time without losing or repeating a byte, because every byte has an offset. Memory is
// bounded on both sides.
//
// The package contains both halves of the protocol, which docs/relay.md describes. The
// server's half is a [Hub], one for each process. The client's half is [Attach], which
// reconnects by itself, or [Dial] for a single connection.
//
// It knows streams, not boxes. Its callers supply the streams ([Source]) and decide who
// may attach ([Grant]).
package relay
