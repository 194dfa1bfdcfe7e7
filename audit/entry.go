package audit

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Decisions of an [Entry].
const (
	Allow  = "allow"
	Deny   = "deny"
	Done   = "done"
	Failed = "failed"
)

// Entry is one line of the log. Its texts may contain anything: control characters are
// escaped, bytes that are not UTF-8 are replaced by U+FFFD.
type Entry struct {
	Time     time.Time      `json:"time"` // zero: now
	Tenant   string         `json:"tenant,omitempty"`
	Actor    string         `json:"actor,omitempty"`
	Request  string         `json:"request,omitempty"` // id of the request
	Action   string         `json:"action,omitempty"`
	Session  string         `json:"session,omitempty"`
	Box      string         `json:"box,omitempty"`
	Process  string         `json:"process,omitempty"`
	Decision string         `json:"decision,omitempty"` // Allow, Deny, Done or Failed
	Reason   string         `json:"reason,omitempty"`
	Details  map[string]any `json:"details,omitempty"`

	// Ends says that the entry is about the end of something, and may use the [Reserve].
	Ends bool `json:"-"`
}

// MaxLine is the maximum length of a line in bytes, including its newline.
const MaxLine = 256 << 10

// ErrEntry: an entry cannot be written as a line; the log itself is fine.
var ErrEntry = errors.New("audit entry cannot be written")

// Kinds of lines; a line without a kind is an Entry.
const (
	kindAnchor = "anchor"
	kindTorn   = "torn"
)

// record is a line without its hash.
type record struct {
	Seq  uint64 `json:"seq"`
	Kind string `json:"kind,omitempty"`
	Entry
	Anchor *anchor `json:"anchor,omitempty"`
	Torn   *torn   `json:"torn,omitempty"`
	Prev   string  `json:"prev"`
}

// anchor starts a file.
type anchor struct {
	File   int `json:"file"`   // number that this file gets when it is full
	Oldest int `json:"oldest"` // lowest number that is kept from now on
}

// torn describes bytes before its line that are not a line.
type torn struct {
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

// Head identifies a line, so that it can be kept elsewhere.
type Head struct {
	Seq  uint64 `json:"seq"`
	Hash string `json:"hash"`
}

const (
	hashKey = `,"hash":"`
	hashLen = 2 * sha256.Size
	// tailLen is the length of a line from hashKey on, without the newline.
	tailLen = len(hashKey) + hashLen + len(`"}`)
)

// noHash is the prev of the first line.
var noHash = string(bytes.Repeat([]byte("0"), hashLen))

// encode returns the line of r, including its newline, and its hash.
func encode(r record) (line []byte, hash string, err error) {
	body, err := json.Marshal(r)
	if err != nil {
		return nil, "", fmt.Errorf("%w: %w", ErrEntry, err)
	}
	body = body[:len(body)-1] // without "}"
	hash = digest(body)
	line = append(body, hashKey+hash+"\"}\n"...)
	if len(line) > MaxLine {
		return nil, "", fmt.Errorf("%w: it has %d bytes, must have at most %d", ErrEntry, len(line), MaxLine)
	}
	return line, hash, nil
}

// decode reads a line without its newline and checks its hash.
func decode(line []byte) (r record, hash string, err error) {
	if len(line) < tailLen || len(line) >= MaxLine {
		return record{}, "", errors.New("not a line of this log")
	}
	body, tail := line[:len(line)-tailLen], line[len(line)-tailLen:]
	hash = string(tail[len(hashKey) : len(hashKey)+hashLen])
	if string(tail) != hashKey+hash+`"}` {
		return record{}, "", errors.New("not a line of this log: no hash at its end")
	}
	if digest(body) != hash {
		return record{}, "", errors.New("its hash does not match its content: it was changed")
	}
	if err := json.Unmarshal(line, &r); err != nil {
		return record{}, "", fmt.Errorf("not a line of this log: %w", err)
	}
	return r, hash, nil
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
