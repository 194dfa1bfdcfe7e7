// Package leftover keeps records of what dead launchers left behind and their successors
// could not remove. Launchers write the records and use them to schedule retries; the doctor
// shows them. The package itself removes nothing.
package leftover

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/boxd/boxd/internal/oneline"
)

// prefix begins the name of each record. A record lies next to the directory that it
// describes, not in it: that directory may be what cannot be changed.
const prefix = "stuck-"

// Path is the path of an instance's record.
func Path(state, instance string) string { return filepath.Join(state, prefix+instance) }

// Pauses between two tries.
const (
	firstPause = time.Minute
	maxPause   = time.Hour
)

// maxReason bounds each reason in bytes.
const maxReason = 1 << 10

// Record describes what is left of one instance of a launcher.
type Record struct {
	Instance string `json:"-"`
	// Reasons says, by box ID, why something could not be removed. The ID "" stands for the
	// directory of the instance.
	Reasons map[string]string `json:"reasons"`
	Tries   int               `json:"tries"`
	Next    time.Time         `json:"next"` // when to try again
}

// Due reports whether it is time for the next try.
func (r *Record) Due() bool {
	wait := time.Until(r.Next)
	return wait <= 0 || wait > maxPause // the clock was set back
}

// Read returns the record of an instance, or nil if it is missing or damaged.
func Read(state, instance string) *Record {
	text, err := os.ReadFile(Path(state, instance))
	r := &Record{Instance: instance}
	if err != nil || json.Unmarshal(text, r) != nil {
		return nil
	}
	return r
}

// List returns all records of a state directory.
func List(state string) ([]*Record, error) {
	names, err := filepath.Glob(filepath.Join(state, prefix+"*"))
	var all []*Record
	for _, name := range names {
		if r := Read(state, strings.TrimPrefix(filepath.Base(name), prefix)); r != nil {
			all = append(all, r)
		}
	}
	return all, err
}

// Note records a try. The keys of errs are those of [Record.Reasons]; if errs is empty, the
// record is removed.
func Note(state, instance string, errs map[string]error) error {
	r := Record{Instance: instance, Reasons: map[string]string{}}
	if before := Read(state, instance); before != nil {
		r.Tries = before.Tries
	}
	pause := min(firstPause<<min(r.Tries, 10), maxPause)
	r.Tries, r.Next = r.Tries+1, time.Now().Add(pause).UTC()
	for box, err := range errs {
		r.Reasons[box] = shorten(err.Error(), maxReason)
	}
	return r.write(state)
}

// Forget removes a box that no longer exists from the record of its instance.
func Forget(state, instance, box string) error {
	r := Read(state, instance)
	if r == nil || r.Reasons[box] == "" {
		return nil
	}
	delete(r.Reasons, box)
	return r.write(state)
}

// write writes the record, or removes its file if the record is empty.
func (r *Record) write(state string) error {
	path := Path(state, r.Instance)
	if len(r.Reasons) == 0 {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	// A crash may leave a truncated record. Read treats that as a missing one.
	return os.WriteFile(path, text, 0o600)
}

// Line describes errs, as passed to [Note], in one line of at most 200 bytes that names the
// first box. It is empty if errs is.
func Line(errs map[string]error) string {
	const most, before = 200, "boxd-init: left by a launcher that was killed: "
	after := "; boxd doctor explains it"
	boxes := slices.Sorted(maps.Keys(errs))
	if len(boxes) == 0 {
		return ""
	}
	if n := len(boxes) - 1; n > 0 {
		after = fmt.Sprintf("; %d more: boxd doctor explains them", n)
	}
	return before + shorten(errs[boxes[0]].Error(), most-len(before)-len(after)) + after
}

// shorten turns s into one line of at most n bytes.
func shorten(s string, n int) string {
	s = oneline.Text(s)
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n-len("…")], "") + "…"
}
