package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// row is one line of the table, as text.
type row struct{ what, p50, p90, bare, ratio, target, reached string }

// table is the output of a run, in Markdown.
type table struct {
	rows  []row
	notes []string // why rows have no figures
	err   error    // rows that could not be measured
}

// goal is a target: text for people, and whether it was reached. The zero value
// is a row without a target.
type goal struct {
	text    string
	reached bool
}

func (g goal) columns() (target, reached string) {
	switch {
	case g.text == "":
		return "-", "-"
	case g.reached:
		return g.text, "yes"
	}
	return g.text, "no"
}

// times adds a row of durations beside its bare samples, which may be nil.
func (t *table) times(what string, s, bare series, g goal) {
	r := row{what: what, p50: format(s.p50()), p90: format(s.p90()), bare: "-", ratio: "-"}
	if bare != nil {
		r.bare = format(bare.p50())
		r.ratio = fmt.Sprintf("%.2f", ratio(s, bare))
	}
	r.target, r.reached = g.columns()
	t.rows = append(t.rows, r)
}

func ratio(s, bare series) float64 { return float64(s.p50()) / float64(max(bare.p50(), 1)) }

func format(d time.Duration) string {
	if d < time.Millisecond {
		return fmt.Sprintf("%d µs", d.Microseconds())
	}
	return fmt.Sprintf("%.2f ms", float64(d)/float64(time.Millisecond))
}

// text adds a row of anything else.
func (t *table) text(r row, g goal) {
	for _, cell := range []*string{&r.p50, &r.p90, &r.bare, &r.ratio} {
		if *cell == "" {
			*cell = "-"
		}
	}
	r.target, r.reached = g.columns()
	t.rows = append(t.rows, r)
}

// skip adds a row without figures, and the reason below the table.
func (t *table) skip(what, why string) {
	t.text(row{what: what, p50: "skipped"}, goal{})
	t.notes = append(t.notes, what+": "+why)
}

// fail adds a row that should have had figures.
func (t *table) fail(what string, err error) {
	t.err = errors.Join(t.err, fmt.Errorf("%s: %w", what, err))
	t.text(row{what: what, p50: "failed"}, goal{})
}

func (t *table) print(w io.Writer, about string) {
	lines := [][]string{
		{"what", "p50", "p90", "bare p50", "ratio", "target", "reached"},
		nil,
	}
	for _, r := range t.rows {
		lines = append(lines, []string{r.what, r.p50, r.p90, r.bare, r.ratio, r.target, r.reached})
	}
	widths := make([]int, len(lines[0]))
	for _, cells := range lines {
		for i, cell := range cells {
			widths[i] = max(widths[i], len([]rune(cell)))
		}
	}
	fmt.Fprintf(w, "%s\n\n", about)
	for _, cells := range lines {
		for i, width := range widths {
			if cells == nil {
				fmt.Fprint(w, "|", strings.Repeat("-", width+2))
				continue
			}
			fmt.Fprintf(w, "| %s%s ", cells[i], strings.Repeat(" ", width-len([]rune(cells[i]))))
		}
		fmt.Fprintln(w, "|")
	}
	for _, note := range t.notes {
		fmt.Fprintf(w, "\n%s\n", note)
	}
}
