// Package report holds what a benchmark has measured: rows with their samples, statistics of
// them, and their forms: a table, JSON, a page, and the comparison of two reports.
package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
)

// Unit is what the figures of a row count.
type Unit string

// The units. Of a time, of memory and of a share, less is better; of a rate, more.
const (
	Nanoseconds    Unit = "ns"
	Bytes          Unit = "B"
	PerSecond      Unit = "1/s"
	BytesPerSecond Unit = "B/s"
	Percent        Unit = "%"
)

// rises says whether more is better.
func (u Unit) rises() bool { return u == PerSecond || u == BytesPerSecond }

// Row is one figure. Its names are stable: scripts and Compare rely on them.
type Row struct {
	Section string `json:"section"`
	Name    string `json:"name"` // such as "exec.warm"
	What    string `json:"what"` // for people
	Unit    Unit   `json:"unit"`
	// P50 is the median and P90 the value that 90 % of the samples are not worse than. From Lo to
	// Hi is the 95 % bootstrap interval of the median, or with fewer than five samples their range. All are 0 in a row without samples.
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	Lo  float64 `json:"lo"`
	Hi  float64 `json:"hi"`
	// BareP50 is the median of what the row is compared with, samples of which were taken in turn
	// with its own; Bare says what that is. Ratio is P50 / BareP50, with its 95 % interval. All
	// are zero in a row that is compared with nothing.
	Bare    string  `json:"bare,omitempty"`
	BareP50 float64 `json:"bare_p50,omitempty"`
	Ratio   float64 `json:"ratio,omitempty"`
	RatioLo float64 `json:"ratio_lo,omitempty"`
	RatioHi float64 `json:"ratio_hi,omitempty"`
	// Samples are the raw samples in the order in which they were taken.
	Samples     []float64 `json:"samples,omitempty"`
	BareSamples []float64 `json:"bare_samples,omitempty"`
	Target      string    `json:"target,omitempty"`  // empty: none
	Reached     bool      `json:"reached,omitempty"` // whether the target was reached
	Skipped     string    `json:"skipped,omitempty"` // why there are no figures
	Failed      string    `json:"failed,omitempty"`  // why there are none although there should be
	Args        []string  `json:"args,omitempty"`    // the command line of another program
	Omits       string    `json:"omits,omitempty"`   // what that program does not do and boxd does
}

// Step is a part of a longer row, for a waterfall: what had happened, and when since the beginning.
type Step struct {
	What string  `json:"what"`
	At   float64 `json:"at"` // ns, the median
}

// Host describes what figures depend on.
type Host struct {
	Version    string `json:"version"` // of boxd
	Kernel     string `json:"kernel"`
	Processors int    `json:"processors"`
	Model      string `json:"model"`   // of the processors
	Virtual    bool   `json:"virtual"` // in a virtual machine
	Cgroups    string `json:"cgroups"` // "unified", "hybrid"
	Governor   string `json:"governor,omitempty"`
	Load       string `json:"load"` // load averages of 1, 5 and 15 minutes at the start
}

// Noise is what else the host did, which figures suffer from.
type Noise struct {
	Busy   float64 `json:"busy"`   // % of the processors that others used in the second before the start
	Steal  float64 `json:"steal"`  // % of the time of the run in which the hypervisor ran something else
	Spread float64 `json:"spread"` // of bare fork+exec: (p90 - p50) / p50
	// Warnings are sentences about what exceeds a bound; empty on a quiet host.
	Warnings []string `json:"warnings"`
}

// Report is one run.
type Report struct {
	Format  int      `json:"format"` // Format
	Command []string `json:"command"`
	Began   string   `json:"began"` // RFC 3339
	Seconds float64  `json:"seconds"`
	Host    Host     `json:"host"`
	Noise   Noise    `json:"noise"`
	Rows    []*Row   `json:"rows"`
	Birth   []Step   `json:"birth,omitempty"` // the waterfall of a box
}

// Format is the version of the JSON form.
const Format = 1

// Add fills in the statistics of a row from its samples and appends it.
func (r *Report) Add(row Row) *Row {
	row.summarize()
	r.Rows = append(r.Rows, &row)
	return &row
}

// Row returns the row of a name, or nil.
func (r *Report) Row(name string) *Row {
	for _, row := range r.Rows {
		if row.Name == name {
			return row
		}
	}
	return nil
}

// Err joins the failures of rows.
func (r *Report) Err() (err error) {
	for _, row := range r.Rows {
		if row.Failed != "" {
			err = errors.Join(err, fmt.Errorf("%s: %s", row.Name, row.Failed))
		}
	}
	return err
}

// WriteJSON writes the report with all samples.
func (r *Report) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", " ")
	return e.Encode(r)
}

// Read reads a report that WriteJSON has written.
func Read(path string) (*Report, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var r Report
	if err := json.Unmarshal(b, &r); err != nil {
		return nil, fmt.Errorf("%s: not a report of boxd bench --json: %w", path, err)
	}
	if r.Format != Format {
		return nil, fmt.Errorf("%s: a report of format %d; this boxd reads format %d", path, r.Format, Format)
	}
	return &r, nil
}
