// Package session manages sessions: named boxes of tenants, each with a lifetime and a
// workspace, with the commands and managed processes in them. It keeps everything on disk
// that is needed to continue after a crash.
//
// It does not decide what a request may have (package policy), build boxes (package
// engine), or speak a protocol (packages api and relay).
//
// # Locks
//
// Outermost first; the holder of one may take only those below it:
//
//	session.op   one state change of a session at a time (a channel, taken with a context);
//	             held during slow work, and only by callers of that session
//	measuring    one measurement of a workspace at a time; it is tried, or waited for
//	             once, by the removal
//	volumes.looking  one query for the engine's volumes at a time
//	Manager.mu   the registry and the heap of deadlines; never held during I/O
//	session.mu   fields of one session and its processes; never held during I/O
//	leaves       events, errors, counters, the queue of the database, cached volumes
//
// Manager.mu and session.mu are never held together, so listing sessions never waits for a
// session, and no session waits for a listing.
package session
