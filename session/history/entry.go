package history

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"strings"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/headtail"
)

// Entry is a command or managed process that has ended.
type Entry struct {
	// Seq is the number of the entry, which Append assigns. Later entries have higher numbers.
	Seq uint64 `json:"-"`

	Tenant  string `json:"tenant"`
	Session string `json:"session"`
	Box     string `json:"box,omitempty"`
	Profile string `json:"profile,omitempty"`
	// User is the label "user" of the session, for accounting.
	User string `json:"user,omitempty"`
	// Labels are those of the session that [Totals] tell apart.
	Labels map[string]string `json:"labels,omitempty"`
	// Process is the ID of a managed process; empty: a command. Key tells apart the processes
	// that have had this ID: Append ignores a second entry with the same tenant, session, box and key.
	Process string `json:"process,omitempty"`
	Key     string `json:"key,omitempty"`
	// Probe says that this is a probe of a managed process: it is counted, and List leaves it out.
	Probe Probe `json:"probe,omitempty"`

	Actor     string        `json:"actor,omitempty"`
	Request   string        `json:"request,omitempty"`
	Argv      []string      `json:"argv,omitempty"`
	StartedAt time.Time     `json:"started_at"`
	EndedAt   time.Time     `json:"ended_at"`
	Result    engine.Result `json:"result"`

	// Period: this is no command but a period in the life of a box, from StartedAt to EndedAt, which
	// is counted and not kept. Gone: the session is gone; this only forgets what Metered says of it.
	Period bool `json:"period,omitempty"`
	Gone   bool `json:"gone,omitempty"`
	// Memory is memory multiplied with time, in MiB·ms: for a period the box's, and for a command
	// or process what no period has; see [MemoryTime].
	Memory int64 `json:"memory,omitempty"`

	// The kept output, and the gap in it.
	Stdout        []byte            `json:"stdout,omitempty"`
	Stderr        []byte            `json:"stderr,omitempty"`
	StdoutMissing *headtail.Missing `json:"stdout_missing,omitempty"`
	StderrMissing *headtail.Missing `json:"stderr_missing,omitempty"`
}

// kept reports whether e is an entry of the history and not only counted.
func (e *Entry) kept() bool { return !e.Period && e.Probe == "" }

// Probe is a kind of probe that runs something in the box.
type Probe string

const (
	ProbeCommand Probe = "command" // counts as a command
	ProbeHTTP    Probe = "http"    // only what it has used counts
)

// maxBody bounds the JSON of an entry. At most 1 MiB of each stream is kept, which
// is 2.7 MiB in base64; everything else is small.
const maxBody = 4 << 20

// frameHead is the length of a frame without its body.
const frameHead = 16

// frame returns body as it is in the journal.
func frame(seq uint64, body []byte) []byte {
	f := make([]byte, frameHead, frameHead+len(body))
	binary.BigEndian.PutUint32(f, uint32(len(body)))
	binary.BigEndian.PutUint64(f[8:], seq)
	f = append(f, body...)
	binary.BigEndian.PutUint32(f[4:], crc32.ChecksumIEEE(f[8:]))
	return f
}

// encode returns the stored form of an entry; decode reads it.
func encode(e *Entry) ([]byte, error) {
	for _, name := range []string{e.Tenant, e.Session, e.Box, e.Key, e.Profile} {
		if strings.ContainsRune(name, 0) { // it separates the parts of a key
			return nil, fmt.Errorf("history: %q contains a NUL", name)
		}
	}
	body, err := json.Marshal(e)
	if err == nil && len(body) > maxBody {
		err = fmt.Errorf("an entry of %d bytes is longer than %d", len(body), maxBody)
	}
	if err != nil {
		return nil, fmt.Errorf("history: %w", err)
	}
	return body, nil
}

func decode(seq uint64, body []byte) (e Entry, err error) {
	if err := json.Unmarshal(body, &e); err != nil {
		return e, fmt.Errorf("entry %d: %w", seq, err)
	}
	if e.Tenant == "" || e.Session == "" || strings.ContainsRune(e.Tenant+e.Session+e.Box+e.Key+e.Profile, 0) {
		return e, fmt.Errorf("entry %d: belongs to no session", seq)
	}
	e.Seq = seq
	return e, nil
}
