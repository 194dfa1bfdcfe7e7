// Package boxtest has the helpers of tests that run commands and managed processes in boxes of
// any engine: each is one line in a test, waits with an end, and fails with what the box printed.
package boxtest
