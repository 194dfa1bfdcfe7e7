// Package badluck runs a real daemon and gives it the bad luck of real life: a full disk, a
// broken database, clients that vanish, never send or never read.
package badluck
