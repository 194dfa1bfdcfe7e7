package testutil

import (
	"flag"
	"time"
)

// Patience is how long a test waits for an event before it fails: half of go test
// -timeout. So a hang fails with a name, and a busy machine fails nothing.
func Patience() time.Duration {
	const usual = 10 * time.Minute // without -timeout, as go test has it
	limit, ok := flag.Lookup("test.timeout").Value.(flag.Getter).Get().(time.Duration)
	if !ok || limit == 0 {
		limit = usual
	}
	return limit / 2
}
