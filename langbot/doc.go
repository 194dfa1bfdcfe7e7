// Package langbot carries out the actions of LangBot's Box Runtime protocol on top of boxd's
// sessions. It defines what a session, a command and a managed process of the protocol are,
// when they begin and end, and what a client is told about them.
//
// It opens no listener (package door), parses no messages (package protocol), builds no boxes
// and makes no policy decisions (packages session and policy).
//
// # Locks
//
// Outermost first; the holder of one may take only those below it:
//
//	Server.ops   one change of a session, or of a managed process, at a time, by name;
//	             held during slow work
//	Server.mu    the registry and all fields of its entries; never held during I/O
package langbot
