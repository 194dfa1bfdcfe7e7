package apitypes

import (
	"bytes"
	"encoding/json"
	"math"
	"reflect"
	"strconv"
	"time"

	"github.com/boxd/boxd/engine/spec"
)

// Size is a number of bytes. In JSON it is a number; a string such as "512M" or
// "1.5GiB" is accepted as well. -1 is "unlimited" where that is allowed.
type Size int64

// UnmarshalJSON accepts an integer or a string that [spec.ParseSize] takes; null
// changes nothing.
func (s *Size) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		return nil
	}
	n, err := strconv.ParseInt(string(b), 10, 64)
	if isString(b) {
		var text string
		if err = json.Unmarshal(b, &text); err == nil {
			n, err = spec.ParseSize(text)
		}
	}
	if err != nil {
		return notA[Size](b)
	}
	*s = Size(n)
	return nil
}

// notA says that b is none of T. It is of the one type of error to which
// encoding/json adds the name of the field.
func notA[T any](b []byte) error {
	return &json.UnmarshalTypeError{Value: spec.Quote(string(b)), Type: reflect.TypeFor[T]()}
}

// Duration is a length of time. In JSON it is a number of seconds; a string such as
// "1m30s" is accepted as well. -1 second is "without an end" where that is allowed.
type Duration time.Duration

// D is the duration as package time has it.
func (d Duration) D() time.Duration { return time.Duration(d) }

// MarshalJSON writes seconds, with a fraction down to nanoseconds.
func (d Duration) MarshalJSON() ([]byte, error) {
	return strconv.AppendFloat(nil, time.Duration(d).Seconds(), 'f', -1, 64), nil
}

// maxSeconds keeps a Duration far away from the end of int64.
const maxSeconds = 100 * 365 * 24 * 3600

// UnmarshalJSON accepts a number of seconds or a string that
// [time.ParseDuration] takes, up to a hundred years, or -1; null changes nothing.
func (d *Duration) UnmarshalJSON(b []byte) error {
	switch string(b) {
	case "null":
		return nil
	case "-1":
		*d = Duration(-time.Second)
		return nil
	}
	parsed, ok := parseDuration(b)
	if !ok || parsed < 0 || parsed > maxSeconds*time.Second {
		return notA[Duration](b)
	}
	*d = Duration(parsed)
	return nil
}

func parseDuration(b []byte) (time.Duration, bool) {
	if isString(b) {
		var text string
		if json.Unmarshal(b, &text) != nil {
			return 0, false
		}
		d, err := time.ParseDuration(text)
		return d, err == nil
	}
	f, err := strconv.ParseFloat(string(b), 64)
	if err != nil || !(f >= 0 && f <= maxSeconds) {
		return 0, false
	}
	return time.Duration(math.Round(f * float64(time.Second))), true
}

func isString(b []byte) bool { return bytes.HasPrefix(b, []byte{'"'}) }
