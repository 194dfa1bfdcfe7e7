package testutil

import (
	"flag"
	"time"
)

// Patience is how long a test waits for an event before it fails: half of go test -timeout. So a hang
// fails the test that hangs, and a busy machine fails none.
func Patience() time.Duration {
	const usual = 10 * time.Minute // go test without -timeout
	limit, ok := flag.Lookup("test.timeout").Value.(flag.Getter).Get().(time.Duration)
	if !ok || limit == 0 {
		limit = usual
	}
	return limit / 2
}
