// Package leftover keeps the records of what dead launchers left and the next one could
// not remove: launchers write them, and decide by them when to try again; the doctor
// shows them. It removes nothing itself.
package leftover

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// prefix starts the names of records. A record lies beside the directory that it is about,
// because that may be what cannot be changed.
const prefix = "stuck-"

// Path is where the record of an instance is.
func Path(state, instance string) string { return filepath.Join(state, prefix+instance) }

// Pauses between two tries.
const (
	firstPause = time.Minute
	maxPause   = time.Hour
)

// maxReason bounds each reason in bytes.
const maxReason = 1 << 10

// Record says what is left of one instance of a launcher.
type Record struct {
	Instance string `json:"-"`
	// Reasons are why, by the id of the box; "" is the directory of the instance.
	Reasons map[string]string `json:"reasons"`
	Tries   int               `json:"tries"`
	Next    time.Time         `json:"next"` // try
}

// Due says whether it is time for the next try.
func (r *Record) Due() bool {
	wait := time.Until(r.Next)
	return wait <= 0 || wait > maxPause // the clock was set back
}

// Read returns the record of an instance, nil if there is none or it is damaged.
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

// Note records a try: errs are what could not be removed and why, as in
// [Record.Reasons]. Without errs the record goes.
func Note(state, instance string, errs map[string]error) error {
	r := Record{Instance: instance, Reasons: map[string]string{}}
	if before := Read(state, instance); before != nil {
		r.Tries = before.Tries
	}
	pause := min(firstPause<<min(r.Tries, 10), maxPause)
	r.Tries, r.Next = r.Tries+1, time.Now().Add(pause).UTC()
	for box, err := range errs {
		r.Reasons[box] = Shorten(err.Error(), maxReason)
	}
	return r.write(state)
}

// Forget removes a box, which is gone, from the record of its instance.
func Forget(state, instance, box string) error {
	r := Read(state, instance)
	if r == nil || r.Reasons[box] == "" {
		return nil
	}
	delete(r.Reasons, box)
	return r.write(state)
}

// write writes the record, or removes it if there is nothing in it.
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
	// A record that is cut off by a crash is damaged, which is as good as none.
	return os.WriteFile(path, text, 0o600)
}

// Line describes what could not be removed in one line of at most 200 bytes, which names
// the first box; empty if there is nothing.
func Line(errs map[string]error) string {
	const most, before = 200, "boxd-init: left by a launcher that was killed: "
	after := "; boxd doctor explains it"
	boxes := make([]string, 0, len(errs))
	for box := range errs {
		boxes = append(boxes, box)
	}
	if len(boxes) == 0 {
		return ""
	}
	slices.Sort(boxes)
	if n := len(boxes) - 1; n > 0 {
		after = fmt.Sprintf("; %d more: boxd doctor explains them", n)
	}
	return before + Shorten(errs[boxes[0]].Error(), most-len(before)-len(after)) + after
}

// Shorten makes s one line of at most n bytes.
func Shorten(s string, n int) string {
	s = strings.ReplaceAll(strings.TrimSpace(s), "\n", "; ")
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n-len("…")], "") + "…"
}
