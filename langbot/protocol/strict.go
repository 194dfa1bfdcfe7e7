package protocol

import (
	"encoding/json"
	"time"
)

// Strict parses an object that may have known members only, and whose numbers must be
// written as numbers. Its methods keep the first error, and return zero for a wrong value.
type Strict struct {
	class  Class
	what   string
	values map[string][]byte
	err    error
}

// NewStrict starts to parse raw, which errors call what. The errors are of this class.
func NewStrict(class Class, what string, raw json.RawMessage) *Strict {
	s := &Strict{class: class, what: what, values: map[string][]byte{}}
	m := object(raw)
	for m.next() {
		s.values[string(m.name)] = m.value
	}
	if m.err != nil {
		s.err = field{class, what, raw}.fail("want an object")
	}
	return s
}

// field removes and returns a member; ok is false if it is missing, or there was an error.
func (s *Strict) field(name string) (field, bool) {
	raw, ok := s.values[name]
	delete(s.values, name)
	return field{s.class, s.what + "." + name, raw}, ok && s.err == nil
}

// Err returns the first error. A member that no method has asked for is an error.
func (s *Strict) Err() error {
	if s.err == nil {
		for name := range s.values {
			return Errorf(s.class, "%s: unknown key %q: leave it out", s.what, name)
		}
	}
	return s.err
}

// require records the error for a missing member.
func (s *Strict) require(f field, ok bool) bool {
	if !ok && s.err == nil {
		s.err = Errorf(s.class, "%s: is missing: it is required", f.name)
	}
	return ok
}

// Name returns a required string, trimmed and not empty.
func (s *Strict) Name(name string) (v string) {
	if f, ok := s.field(name); s.require(f, ok) {
		v, s.err = f.nonEmptyID()
	}
	return v
}

// Int returns a required integer from least to most.
func (s *Strict) Int(name string, least, most int64) (v int64) {
	if f, ok := s.field(name); s.require(f, ok) {
		v, s.err = f.between(least, most)
	}
	return v
}

// IntOr is Int for an optional member.
func (s *Strict) IntOr(name string, other, least, most int64) int64 {
	if f, ok := s.field(name); ok {
		other, s.err = f.between(least, most)
	}
	return other
}

// PositiveOr returns an optional finite number above zero.
func (s *Strict) PositiveOr(name string, other float64) float64 {
	f, ok := s.field(name)
	if !ok {
		return other
	}
	if c := f.raw[0]; c != '-' && !isDigit(c) {
		s.err = f.fail("want a number")
	} else if other, s.err = f.number(); s.err == nil && other <= 0 {
		s.err = f.fail("must be greater than 0")
	}
	return other
}

// BoolOr returns an optional boolean, which may be written as a word.
func (s *Strict) BoolOr(name string, other bool) bool {
	if f, ok := s.field(name); ok {
		other, s.err = f.boolean()
	}
	return other
}

// Only accepts a single value of an optional string.
func (s *Strict) Only(name, value string) {
	if f, ok := s.field(name); ok {
		_, s.err = f.oneOf(value)
	}
}

// Time returns a required point in time, which must have a zone.
func (s *Strict) Time(name string) (v time.Time) {
	if f, ok := s.field(name); s.require(f, ok) {
		v, s.err = f.time()
	}
	return v
}

func (f field) between(least, most int64) (int64, error) {
	n, big, ok := f.literal()
	switch {
	case !ok:
		return 0, f.fail("must be an integer")
	case big || n < least || n > most:
		return 0, Errorf(f.class, "%s: %s: must be from %d to %d", f.name, show(f.raw), least, most)
	}
	return n, nil
}

// time parses a point in time in the format of ISO 8601, with a zone, to the microsecond.
func (f field) time() (time.Time, error) {
	s, err := f.trimmed()
	if err != nil {
		return time.Time{}, err
	}
	b := []byte(s)
	if len(b) > 10 && (b[10] == ' ' || b[10] == 't' || b[10] == '_') {
		b[10] = 'T'
	}
	if n := len(b); n > 0 && b[n-1] == 'z' {
		b[n-1] = 'Z'
	}
	for _, clock := range [...]string{"15:04:05", "15:04"} {
		for _, zone := range [...]string{"Z07:00", "Z0700", "Z07"} {
			if t, err := time.Parse("2006-01-02T"+clock+zone, string(b)); err == nil {
				return t.UTC().Truncate(time.Microsecond), nil
			}
		}
	}
	return time.Time{}, f.fail("must be a time with a zone, such as 2026-11-20T08:33:23Z")
}

// ISO formats a point in time for replies about grants: UTC, with microseconds unless they
// are zero, and "+00:00".
func ISO(t time.Time) string {
	t = t.UTC()
	if t.Nanosecond()/1000 == 0 {
		return t.Format("2006-01-02T15:04:05+00:00")
	}
	return t.Format("2006-01-02T15:04:05.000000+00:00")
}
