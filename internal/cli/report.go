package cli

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"time"
	"unicode/utf8"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/engine"
)

// report is the object that --json prints for a command that ran. Scripts rely on its names, so
// golden files pin them.
type report struct {
	ExitCode        *int              `json:"exit_code"` // null if the command did not exit by itself
	Status          int               `json:"status"`    // the exit status of boxd run
	Verdict         string            `json:"verdict"`
	Signal          string            `json:"signal,omitempty"` // such as "SIGKILL"
	Limit           string            `json:"limit,omitempty"`  // such as "64 MiB"
	Stdout          *string           `json:"stdout,omitempty"`
	StdoutBase64    *string           `json:"stdout_base64,omitempty"`
	StdoutTruncated bool              `json:"stdout_truncated"`
	Stderr          *string           `json:"stderr,omitempty"`
	StderrBase64    *string           `json:"stderr_base64,omitempty"`
	StderrTruncated bool              `json:"stderr_truncated"`
	Denied          []apitypes.Denial `json:"denied,omitempty"`
	Receipt         receiptDoc        `json:"receipt"`
}

// failure is the object that --json prints if there is no result.
type failure struct {
	ExitCode *int   `json:"exit_code"` // always null
	Status   int    `json:"status"`    // the exit status of boxd
	Error    string `json:"error"`
}

// receiptDoc is a receipt in JSON. Times are in milliseconds, with three decimals. Figures that
// were not measured are absent.
type receiptDoc struct {
	Wall             *millis `json:"wall_ms,omitempty"`
	User             *millis `json:"user_ms,omitempty"`
	System           *millis `json:"system_ms,omitempty"`
	Throttled        *millis `json:"throttled_ms,omitempty"`
	MemoryPeak       *int64  `json:"memory_peak_bytes,omitempty"`
	PIDsPeak         *int64  `json:"pids_peak,omitempty"`
	StdoutBytes      *int64  `json:"stdout_bytes,omitempty"`
	StderrBytes      *int64  `json:"stderr_bytes,omitempty"`
	IOReadBytes      *int64  `json:"io_read_bytes,omitempty"`
	IOWriteBytes     *int64  `json:"io_write_bytes,omitempty"`
	OOMKills         *int64  `json:"oom_kills,omitempty"`
	PIDsLimitReached *int64  `json:"pids_limit_reached,omitempty"`
}

// millis is a duration whose JSON is a number of milliseconds.
type millis time.Duration

func (m millis) MarshalJSON() ([]byte, error) {
	us := time.Duration(m).Round(time.Microsecond).Microseconds()
	return json.Marshal(float64(us) / 1000)
}

func newReceiptDoc(r engine.Receipt) receiptDoc {
	wall := millis(r.Wall)
	return receiptDoc{
		Wall: &wall, User: (*millis)(r.User), System: (*millis)(r.System), Throttled: (*millis)(r.Throttled),
		MemoryPeak: r.MemoryPeak, PIDsPeak: r.PIDsPeak, StdoutBytes: r.StdoutBytes, StderrBytes: r.StderrBytes,
		IOReadBytes: r.IOReadBytes, IOWriteBytes: r.IOWriteBytes, OOMKills: r.OOMKills, PIDsLimitReached: r.PIDsLimitReached,
	}
}

func (o *output) report(r engine.Result, status int) report {
	doc := report{ExitCode: r.Exit(), Status: status, Verdict: string(r.Verdict), Limit: r.Limit, Denied: o.denied, Receipt: newReceiptDoc(r.Receipt)}
	if r.Signal != 0 {
		doc.Signal = signalName(r.Signal)
	}
	doc.Stdout, doc.StdoutBase64 = text(o.stdout.Bytes())
	doc.Stderr, doc.StderrBase64 = text(o.stderr.Bytes())
	if r.Verdict == engine.OutputLimit {
		doc.StdoutTruncated = int64(o.stdout.Len()) >= o.limit
		doc.StderrTruncated = int64(o.stderr.Len()) >= o.limit
	}
	return doc
}

// text returns b as a string if JSON can carry it unchanged, otherwise in base64. They have
// different names in JSON, so that a reader who does not know of base64 never takes it for the
// output.
func text(b []byte) (plain, encoded *string) {
	if utf8.Valid(b) {
		s := string(b)
		return &s, nil
	}
	s := base64.StdEncoding.EncodeToString(b)
	return nil, &s
}

func writeJSON(w io.Writer, doc any) error {
	if err := encodeJSON(w, doc, ""); err != nil {
		return fmt.Errorf("writing JSON to stdout: %w", err)
	}
	return nil
}

// encodeJSON writes doc without escapes for HTML. Without an indent it is one line.
func encodeJSON(w io.Writer, doc any, indent string) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", indent)
	return enc.Encode(doc)
}
