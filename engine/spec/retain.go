package spec

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// RetainForever is the value of [Settings].Retain that never removes a workspace; [None] removes
// it with the session, and so does the empty string of old records.
const RetainForever = "forever"

// Forever is the time for which [RetainForever] keeps a workspace.
const Forever = time.Duration(math.MaxInt64)

// MinRetain is the shortest time for which a workspace is kept; [MaxTime] is the longest.
const MinRetain = time.Second

// ParseRetain returns how long text says that a workspace is kept: 0 for none, [Forever], or a
// time such as 7d or 12h30m. Errors are of type *[FieldError].
func ParseRetain(text string) (time.Duration, error) {
	switch text {
	case "", None:
		return 0, nil
	case RetainForever:
		return Forever, nil
	}
	d, err := time.ParseDuration(text)
	if days, ok := strings.CutSuffix(text, "d"); ok {
		var n uint64
		n, err = strconv.ParseUint(days, 10, 16)
		d = time.Duration(n) * 24 * time.Hour
	}
	if err != nil || d < MinRetain || d > MaxTime {
		return 0, refuse("retain", Quote(text), `must be "none", "forever", or %s to %s such as "7d" or "12h"`, MinRetain, MaxTime)
	}
	return d, nil
}
