// Package linerelay connects the stdin and stdout of one managed process to a WebSocket,
// one text message for each line, as LangBot's Box Runtime protocol requires: the client
// parses each message as one document. One client is attached at a time; a new one replaces
// it.
//
// It knows streams, not sandboxes: its callers decide who may attach, and to what. Unlike
// package relay, its protocol has no offsets, so bytes count as received once they are
// written to a connection.
package linerelay
