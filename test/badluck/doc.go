// Package badluck runs a real daemon and has happen to it what happens to daemons: a
// full disk, a broken database, clients that vanish, never speak or never read.
package badluck
