// Package daemon runs "boxd serve" for tests and benchmarks that look at it from
// outside: it starts, kills and finds the processes of one daemon and its launcher.
package daemon
