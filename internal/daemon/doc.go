// Package daemon is "boxd serve": it puts the parts together, opens the doors and
// closes them again. What a client may do is policy's to say, and what a session
// is, session's; nothing here decides either.
package daemon
