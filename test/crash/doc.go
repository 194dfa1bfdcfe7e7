// Package crash kills the daemon, its launcher and the launcher's keeper at random
// moments while sessions, execs and managed processes are busy, and checks that
// nothing is lost, repeated, invented or left behind: no byte of a process, no entry of
// the history, nothing in the usage. docs/reliability.md has the results of long runs:
//
//	BOXD_CRASH_ROUNDS=1000 make test-root PKGS=./test/crash TESTARGS="-v -timeout 60m"
package crash
