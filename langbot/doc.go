// Package langbot does the actions of LangBot's Box Runtime protocol over the sessions
// of boxd: what a session, a command and a managed process of the protocol are, when
// they begin and end, and what a client is told of them.
//
// It opens no listener (package door), reads no wire (package protocol), builds no box
// and decides no policy (packages session and policy).
//
// # Locks
//
// Outermost first; who holds one takes only those below it:
//
//	Server.ops   one change of a session, or of a managed process, at a time, by name;
//	             held over slow work
//	Server.mu    the registry and all fields of what is in it; never over I/O
package langbot
