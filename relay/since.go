package relay

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
)

// Position is a place in a stream: an offset, the oldest byte kept, or the end. The zero
// value is the oldest byte kept.
type Position struct {
	Kind   PositionKind
	Offset int64 // for At, not negative
}

// PositionKind says what a [Position] means.
type PositionKind byte

// The kinds of positions.
const (
	Oldest PositionKind = iota // the oldest byte kept
	End                        // after the newest byte
	At                         // at Position.Offset
)

func (p Position) String() string {
	switch p.Kind {
	case At:
		return strconv.FormatInt(p.Offset, 10)
	case End:
		return "end"
	default:
		return "oldest"
	}
}

// Since says where the output streams start for a client. The zero value means the oldest
// bytes kept.
type Since struct{ Stdout, Stderr Position }

func (s Since) String() string { return s.Stdout.String() + "," + s.Stderr.String() }

// ParseSince parses the query parameters since, "OUT" or "OUT,ERR", and since_stderr,
// which may be empty. Each position is an offset, "oldest" or "end".
func ParseSince(since, stderr string) (Since, error) {
	var s Since
	var err error
	out, second, both := strings.Cut(since, ",")
	if both && stderr != "" {
		return s, errors.New("since: gives stderr, and so does since_stderr: leave one out")
	}
	if out != "" || both {
		if s.Stdout, err = parsePosition("since", out); err != nil {
			return Since{}, err
		}
	}
	switch {
	case both:
		s.Stderr, err = parsePosition("since", second)
	case stderr != "":
		s.Stderr, err = parsePosition("since_stderr", stderr)
	case s.Stdout.Kind == End:
		s.Stderr.Kind = End
	}
	if err != nil {
		return Since{}, err
	}
	return s, nil
}

func parsePosition(key, v string) (Position, error) {
	switch v {
	case "oldest":
		return Position{}, nil
	case "end":
		return Position{Kind: End}, nil
	}
	off, err := strconv.ParseUint(v, 10, 63)
	if err != nil || v[0] == '+' {
		return Position{}, fmt.Errorf("%s: %.40q: want an offset, oldest or end", key, v)
	}
	return Position{At, int64(off)}, nil
}

// request is a client's request to attach.
type request struct {
	write, takeOver, flow bool
	since                 Since
	client                string
}

// parseRequest parses the query of a request.
func parseRequest(query string) (request, error) {
	var r request
	q, err := url.ParseQuery(query)
	if err != nil {
		return r, fmt.Errorf("query: %w", err)
	}
	for key, v := range q {
		if len(v) != 1 {
			return r, fmt.Errorf("%.40s: given %d times: give it once", key, len(v))
		}
		switch key {
		case "mode":
			r.write = v[0] == "write"
			if !r.write && v[0] != "observe" {
				err = fmt.Errorf("mode: %.40q: want write or observe", v[0])
			}
		case "takeover":
			r.takeOver, err = parseSwitch(key, v[0])
		case "ack":
			r.flow, err = parseSwitch(key, v[0])
		case "client":
			r.client, err = v[0], checkClientID(v[0])
		case "since", "since_stderr": // below, together
		default:
			err = fmt.Errorf("%.40q: no such parameter", key)
		}
		if err != nil {
			return request{}, err
		}
	}
	if r.since, err = ParseSince(q.Get("since"), q.Get("since_stderr")); err != nil {
		return request{}, err
	}
	if r.takeOver && !r.write {
		return request{}, errors.New("takeover: only with mode=write")
	}
	r.flow = r.flow || r.write
	return r, nil
}

func parseSwitch(key, v string) (bool, error) {
	if v != "0" && v != "1" {
		return false, fmt.Errorf("%s: %.40q: want 0 or 1", key, v)
	}
	return v == "1", nil
}

func checkClientID(id string) error {
	bad := func(c rune) bool {
		return !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_')
	}
	if len(id) < 16 || len(id) > 64 || strings.ContainsFunc(id, bad) {
		return fmt.Errorf("client: %.80q: want 16 to 64 of a-z, A-Z, 0-9, - and _", id)
	}
	return nil
}

// query returns the query that parseRequest parses to r.
func (r request) query() url.Values {
	q := url.Values{"mode": {"observe"}, "since": {r.since.String()}, "ack": {"1"}}
	if r.write {
		q.Set("mode", "write")
	}
	if r.takeOver {
		q.Set("takeover", "1")
	}
	if r.client != "" {
		q.Set("client", r.client)
	}
	return q
}
