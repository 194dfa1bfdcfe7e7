package report

import (
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
)

// Change is how a row differs between two reports.
type Change struct {
	Name    string
	Was, Is float64 // ratios to bare, or medians of rows without bare samples
	ToBare  bool    // Was and Is are ratios
	Factor  float64 // Is / Was; above 1 is worse for times, and better for rates
	Lo, Hi  float64 // 95 % interval of Factor
	Sure    bool    // the interval excludes 1, or, with too few samples for one, Factor is beyond coarse
	Worse   bool    // a regression: sure, and beyond the threshold
	Trouble string  // why the row cannot be compared; the other fields are zero then
	unit    Unit
}

// coarse is the factor that counts as sure in a row with too few samples for an interval.
const coarse = 1.5

// Compare compares the rows of two reports by name. Rows that have bare samples in both are compared
// by their ratios to bare, so that the reports may come from hosts, or from hours, of different speed.
// A row is a regression (Worse) if it is worse by more than threshold (0.05 is 5 %) and the interval
// says that this is no accident, or if it has figures in a and none in b, because it failed or because its
// section did. An interval knows the noise within a run only, and of many rows one in twenty is sure by
// accident: measure again before you believe a small change.
func Compare(a, b *Report, threshold float64) (changes []Change) {
	for _, was := range a.Rows {
		if len(was.Samples) == 0 {
			continue
		}
		is := b.Row(was.Name)
		switch {
		case is == nil:
			c := Change{Name: was.Name, Trouble: "is not in the second report"}
			if failed := b.failure(was.Section); failed != "" {
				c.Trouble, c.Worse = "its section failed: "+failed, true
			}
			changes = append(changes, c)
		case is.Failed != "":
			changes = append(changes, Change{Name: was.Name, Trouble: "failed: " + is.Failed, Worse: true})
		case len(is.Samples) == 0:
			changes = append(changes, Change{Name: was.Name, Trouble: "was skipped: " + is.Skipped})
		case is.Unit != was.Unit:
			changes = append(changes, Change{Name: was.Name, Trouble: fmt.Sprintf("has the unit %s, and %s before", is.Unit, was.Unit), Worse: true})
		default:
			changes = append(changes, compare(was, is, threshold))
		}
	}
	return changes
}

// failure says why a section failed; "" if it did not.
func (r *Report) failure(section string) string {
	for _, row := range r.Rows {
		if row.Section == section && row.Failed != "" {
			return row.Failed
		}
	}
	return ""
}

func compare(was, is *Row, threshold float64) Change {
	c := Change{Name: was.Name, ToBare: len(was.BareSamples) > 0 && len(is.BareSamples) > 0, unit: was.Unit}
	value := func(r *Row, draw func([]float64) []float64) float64 {
		v := Median(draw(r.Samples))
		if c.ToBare {
			v /= Median(draw(r.BareSamples))
		}
		return v
	}
	whole := func(s []float64) []float64 { return s }
	c.Was, c.Is = value(was, whole), value(is, whole)
	if c.Was == 0 {
		c.Trouble = "was 0"
		return c
	}
	if c.unit.rises() && c.Is == 0 {
		c.Trouble, c.Worse = "is 0", true
		return c
	}
	c.Factor = c.Is / c.Was
	random := rand.New(rand.NewPCG(3, 4))
	var buffer []float64
	draw := func(s []float64) []float64 {
		buffer = buffer[:0]
		for range s {
			buffer = append(buffer, s[random.IntN(len(s))])
		}
		return buffer
	}
	factors := make([]float64, resamples)
	for i := range factors {
		factors[i] = value(is, draw) / value(was, draw)
	}
	slices.Sort(factors)
	cut := int(float64(resamples) * (1 - confidence) / 2)
	c.Lo, c.Hi = factors[cut], factors[resamples-1-cut]
	if len(was.Samples) >= fewest && len(is.Samples) >= fewest {
		c.Sure = c.Lo > 1 || c.Hi < 1
	} else {
		c.Sure = c.Factor > coarse || c.Factor < 1/coarse
		c.Lo, c.Hi = 0, 0
	}
	if c.unit.rises() {
		c.Worse = c.Sure && c.Factor < 1/(1+threshold)
	} else {
		c.Worse = c.Sure && c.Factor > 1+threshold
	}
	return c
}

// Print writes a table of the changes between two reports, and what makes the reports differ.
func Print(w io.Writer, a, b *Report, changes []Change) {
	fmt.Fprintf(w, "before: %s\nafter:  %s\n", a.About(), b.About())
	for _, warning := range slices.Concat(a.Noise.Warnings, b.Noise.Warnings) {
		fmt.Fprintf(w, "Noisy: %s\n", warning)
	}
	fmt.Fprintln(w)
	lines := [][]string{{"name", "before", "after", "change", "95 % interval", "verdict"}}
	for _, c := range changes {
		if c.Trouble != "" {
			verdict := "not compared"
			if c.Worse {
				verdict = "WORSE"
			}
			lines = append(lines, []string{c.Name, "-", "-", "-", "-", verdict + ": " + c.Trouble})
			continue
		}
		text := func(v float64) string {
			if c.ToBare {
				return fmt.Sprintf("%.2f × bare", v)
			}
			return format(v, c.unit)
		}
		percent := func(f float64) string { return fmt.Sprintf("%+.1f %%", (f-1)*100) }
		between := percent(c.Lo) + " to " + percent(c.Hi)
		if c.Lo == 0 {
			between = "too few samples"
		}
		verdict := "same"
		switch {
		case c.Worse:
			verdict = "WORSE"
		case c.Sure && (c.Factor > 1) == c.unit.rises():
			verdict = "better"
		case c.Sure:
			verdict = "worse, within the threshold"
		}
		lines = append(lines, []string{c.Name, text(c.Was), text(c.Is), percent(c.Factor), between, verdict})
	}
	columns(w, lines)
}
