// Package session manages sessions: named boxes of tenants, each with a lifetime, a
// workspace, commands and managed processes. It keeps on disk whatever it needs to continue
// after a crash.
//
// It does not decide what a request may have (package policy), build boxes (package
// engine), or speak a protocol (packages api and relay).
//
// # Locks
//
// Outermost first; the holder of one may take only those below it:
//
//	session.op       one state change of a session at a time (a channel, taken with a
//	                 context); held during slow work, only by callers of that session
//	workspaceUse.mu  one measurement of a workspace at a time; a measurement tries it, and
//	                 the removal of the session waits for it once
//	session.metering one counting of the life of a box at a time
//	session.looking  one look at the ports of its box at a time
//	session.tidying  held while code is removed in the background; only tried, never awaited
//	sensitivity.mu   what else becomes sensitive with a session or volume; never held during I/O
//	volumes.looking  one query for the engine's volumes at a time
//	Manager.mu       the registry and the heap of deadlines; never held during I/O
//	session.mu       fields of one session and its processes; never held during I/O
//	leaves           events, errors, counters, the queue of the database, cached volumes, history,
//	                 named volumes and their sessions, published ports, where to look for ports
//
// Manager.mu and session.mu are never held together, so listing sessions never waits for a
// session, and no session waits for a listing.
package session
