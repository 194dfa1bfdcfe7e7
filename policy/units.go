package policy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
)

// Size is a number of bytes. In JSON and YAML it is an integer or a string such as
// "512M"; -1 is unlimited where a limit can be that. It is written as an integer.
type Size int64

// UnmarshalJSON reads an integer or a string.
func (s *Size) UnmarshalJSON(b []byte) error { return unmarshalJSON(b, s.UnmarshalText) }

// UnmarshalText reads a size as [spec.ParseSize] does, or "-1".
func (s *Size) UnmarshalText(b []byte) error {
	if string(b) == "-1" {
		*s = engine.Unlimited
		return nil
	}
	n, err := spec.ParseSize(string(b))
	if err != nil {
		return err
	}
	*s = Size(n)
	return nil
}

// Duration is a length of time. In JSON and YAML it is a string such as "30s" or
// "1h30m", or a number of seconds. It is written as a string.
type Duration time.Duration

// UnmarshalJSON reads a number of seconds or a string.
func (d *Duration) UnmarshalJSON(b []byte) error { return unmarshalJSON(b, d.UnmarshalText) }

// UnmarshalText reads what [time.ParseDuration] reads, or a number of seconds.
func (d *Duration) UnmarshalText(b []byte) error {
	bad := &engine.FieldError{Field: "duration", Value: spec.Quote(string(b)),
		Rule: `must be a duration such as "30s" or "5m", or a number of seconds`}
	if seconds, err := strconv.ParseFloat(string(b), 64); err == nil {
		if ns := seconds * float64(time.Second); math.Abs(ns) < math.MaxInt64 { // false for NaN
			*d = Duration(ns)
			return nil
		}
		return bad
	}
	parsed, err := time.ParseDuration(string(b))
	if err != nil {
		return bad
	}
	*d = Duration(parsed)
	return nil
}

// MarshalText writes the form that [time.Duration.String] has.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

func (d Duration) String() string { return time.Duration(d).String() }

// unmarshalJSON hands a JSON number or string to text. null changes nothing, as
// package json has it.
func unmarshalJSON(b []byte, text func([]byte) error) error {
	b = bytes.TrimSpace(b)
	if string(b) == "null" {
		return nil
	}
	if len(b) > 0 && b[0] == '"' {
		var s string
		if err := json.Unmarshal(b, &s); err != nil {
			return fmt.Errorf("reading a string: %w", err)
		}
		return text([]byte(s))
	}
	return text(b)
}
