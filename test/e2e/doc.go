// Package e2e tests the boxd command as people and scripts use it: flags, exit statuses, streams,
// terminals, signals and bad input. Nothing may be left behind.
package e2e
