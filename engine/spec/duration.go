package spec

import (
	"encoding/json"
	"math"
	"reflect"
	"strconv"
	"time"
)

// Duration is a length of time. In JSON it is a number of seconds, with a fraction down to
// nanoseconds; in a request a string such as "1m30s" is accepted as well. In configuration
// and flags it is that string or a number of seconds. -1 second means "no end" where that is
// allowed.
type Duration time.Duration

// D returns d as a [time.Duration].
func (d Duration) D() time.Duration { return time.Duration(d) }

// String formats d as [time.Duration.String] does.
func (d Duration) String() string { return time.Duration(d).String() }

// MarshalJSON writes seconds.
func (d Duration) MarshalJSON() ([]byte, error) {
	return strconv.AppendFloat(nil, time.Duration(d).Seconds(), 'f', -1, 64), nil
}

// maxSeconds keeps a Duration of a request far below the largest int64.
const maxSeconds = 100 * 365 * 24 * 3600

// UnmarshalJSON accepts a number of seconds or a string that [time.ParseDuration] takes,
// up to a hundred years, or -1; null changes nothing. Anything else is a
// *json.UnmarshalTypeError, to which encoding/json adds the name of the field.
func (d *Duration) UnmarshalJSON(b []byte) error {
	switch string(b) {
	case "null":
		return nil
	case "-1":
		*d = Duration(-time.Second)
		return nil
	}
	var parsed time.Duration
	var err error
	if b[0] == '"' {
		var text string
		if err = json.Unmarshal(b, &text); err == nil {
			parsed, err = time.ParseDuration(text)
		}
	} else {
		parsed, err = parseSeconds(string(b))
	}
	if err != nil || parsed < 0 || parsed > maxSeconds*time.Second {
		return &json.UnmarshalTypeError{Value: Quote(string(b)), Type: reflect.TypeFor[Duration]()}
	}
	*d = Duration(parsed)
	return nil
}

// UnmarshalText reads a number of seconds, or what [time.ParseDuration] reads.
func (d *Duration) UnmarshalText(b []byte) error {
	parsed, err := parseSeconds(string(b))
	if err != nil {
		parsed, err = time.ParseDuration(string(b))
	}
	if err != nil {
		return refuse("duration", Quote(string(b)), `must be a duration such as "30s" or "5m", or a number of seconds`)
	}
	*d = Duration(parsed)
	return nil
}

// parseSeconds reads a decimal number of seconds that an int64 of nanoseconds can hold.
func parseSeconds(s string) (time.Duration, error) {
	seconds, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return 0, err
	}
	ns := math.Round(seconds * float64(time.Second))
	if !(math.Abs(ns) < math.MaxInt64) { // NaN too
		return 0, strconv.ErrRange
	}
	return time.Duration(ns), nil
}
