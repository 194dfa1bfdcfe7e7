// Package daemon is "boxd serve": it connects the parts, opens the listeners and closes them again.
// It does not decide what a client may do, which package policy does, nor what a session is.
package daemon
