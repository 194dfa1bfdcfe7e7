// Package relay carries stdin, stdout, stderr, window size, signals and the exit
// of a process over one bounded WebSocket that can be resumed without losing or
// repeating a byte; it has both halves of the protocol, which docs/relay.md
// describes. It knows streams, not sandboxes: where they come from, and who may
// attach, is for its callers to say.
package relay
