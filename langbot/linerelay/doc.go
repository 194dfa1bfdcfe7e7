// Package linerelay connects the stdin and stdout of one managed process to a
// WebSocket, one text message for each line, as LangBot's Box Runtime protocol has
// it: whoever is attached parses each message as one document. One client at a time
// is attached; a newer one takes the place of an older one.
//
// It knows streams, not sandboxes: who may attach, and to what, is for its callers
// to say. Unlike package relay it has no offsets on the wire, so that what was
// written to a connection counts as received.
package linerelay
