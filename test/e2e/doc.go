// Package e2e tests the boxd command as people and scripts use it: flags, exit
// statuses, streams, terminals, signals, bad input, and what is left behind,
// which must be nothing.
package e2e
