// Package session keeps who has which box until when: named sessions of tenants
// with a lifetime and a workspace, the commands and managed processes in them, and
// all that is needed to go on after a crash.
//
// It decides no policy (package policy), builds no box (package engine), speaks no
// protocol (packages api and relay).
//
// # Locks
//
// Outermost first; who holds one takes only those below it:
//
//	session.op   one state change of a session at a time (a channel, taken with a context);
//	             held over slow work, and only by callers of that session
//	measuring    one measurement of a workspace at a time; it is tried, or waited for
//	             once, by the removal
//	volumes.looking  one who asks for the volumes of the engine at a time
//	Manager.mu   the registry and the heap of deadlines; never over I/O
//	session.mu   fields of one session and its processes; never over I/O
//	leaves       events, errors, counters, the queue of the database, what is known of volumes
//
// Manager.mu and session.mu are never held together, so a list of sessions waits
// for no session, and no session for a list.
package session
