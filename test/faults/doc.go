// Package faults holds the tests of what happens when something that boxd cannot
// do without is taken away: processes that are killed or stopped at random
// moments, peers that send garbage, hundreds of boxes at once, resources that run
// out.
//
// A kill test prints its seed. BOXD_FAULTS_SEED=n replays one, and
// BOXD_FAULTS_CYCLES=n sets how many cycles TestKill has (default 200, with -short
// 8); the tests of single phases have half as many.
package faults
