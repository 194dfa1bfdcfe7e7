// Package bridge puts LangBot's stdio transport in front of a running daemon: it sends
// messages from stdin to the daemon as WebSocket messages, writes the answers to stdout, and
// forwards connections to the relays from a TCP port of its own. It understands only the two
// actions that it sends itself.
package bridge
