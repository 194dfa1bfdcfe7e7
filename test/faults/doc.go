// Package faults tests what happens when boxd loses something that it needs: processes are killed
// or stopped at random moments, peers send garbage, hundreds of boxes exist at once, resources run
// out.
//
// A kill test prints its seed. BOXD_FAULTS_SEED=n repeats one, and BOXD_FAULTS_CYCLES=n sets the
// number of cycles of TestKill (default 40, in full 200, with -short 6); the tests of single phases have half
// as many.
package faults
