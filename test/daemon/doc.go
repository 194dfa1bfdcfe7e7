// Package daemon runs "boxd serve" for tests and benchmarks that use it from outside: it starts,
// kills and finds the processes of a daemon and its launcher.
package daemon
