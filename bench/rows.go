package bench

import (
	"time"

	"github.com/boxd/boxd/bench/report"
)

// goal is a target: text for people, and whether it was reached. The zero value is a row without a
// target.
type goal struct {
	text    string
	reached bool
}

func ratio(s, bare series) float64 { return float64(s.p50()) / float64(max(bare.p50(), 1)) }

// values turns samples into figures of a unit; f is the figure of one sample.
func (s series) values(f func(time.Duration) float64) []float64 {
	list := make([]float64, len(s))
	for i, d := range s {
		list[i] = f(d)
	}
	return list
}

func nanoseconds(d time.Duration) float64 { return float64(d) }

// per returns the rate of n things in a sample.
func per(n float64) func(time.Duration) float64 {
	return func(d time.Duration) float64 { return n / d.Seconds() }
}

func (b *bench) add(row report.Row, g goal) *report.Row {
	row.Section = b.current
	row.Target, row.Reached = g.text, g.reached
	return b.report.Add(row)
}

// times adds a row of durations beside its bare samples, which may be nil. bare says what they are if
// not of fork+exec.
func (b *bench) times(name, what string, s, direct series, bare string, g goal) *report.Row {
	return b.add(report.Row{Name: name, What: what, Unit: report.Nanoseconds, Samples: s.values(nanoseconds), BareSamples: direct.values(nanoseconds), Bare: bare}, g)
}

// rates adds a row of rates: n things per sample.
func (b *bench) rates(name, what string, unit report.Unit, n float64, s, direct series, bare string, g goal) {
	b.add(report.Row{Name: name, What: what, Unit: unit, Samples: s.values(per(n)), BareSamples: direct.values(per(n)), Bare: bare}, g)
}

// value adds a row of one figure. direct is what it is compared with; 0 is nothing.
func (b *bench) value(name, what string, unit report.Unit, v, direct float64, bare string, g goal) {
	row := report.Row{Name: name, What: what, Unit: unit, Samples: []float64{v}, Bare: bare}
	if direct != 0 {
		row.BareSamples = []float64{direct}
	}
	b.add(row, g)
}

// skip adds a row without figures, and why there are none.
func (b *bench) skip(name, what, why string) *report.Row {
	return b.add(report.Row{Name: name, What: what, Skipped: why}, goal{})
}

// fail adds a row that should have had figures.
func (b *bench) fail(name string, err error) {
	b.add(report.Row{Name: name, Failed: err.Error()}, goal{})
}
