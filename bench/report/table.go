package report

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

// format writes a value for people.
func format(v float64, u Unit) string {
	switch u {
	case Nanoseconds:
		switch {
		case v < 1e3:
			return fmt.Sprintf("%.0f ns", v)
		case v < 10e3:
			return fmt.Sprintf("%.1f µs", v/1e3)
		case v < 1e6:
			return fmt.Sprintf("%.0f µs", v/1e3)
		case v < 1e9:
			return fmt.Sprintf("%.2f ms", v/1e6)
		}
		return fmt.Sprintf("%.2f s", v/1e9)
	case Bytes:
		return fmt.Sprintf("%.2f MiB", v/(1<<20))
	case BytesPerSecond:
		if v < 1e9 {
			return fmt.Sprintf("%.0f MB/s", v/1e6)
		}
		return fmt.Sprintf("%.2f GB/s", v/1e9)
	case PerSecond:
		return fmt.Sprintf("%.0f/s", v)
	case Percent:
		return fmt.Sprintf("%.2f %%", v)
	}
	return fmt.Sprint(v)
}

// Cells are the columns of a row's line.
func (r *Row) cells() []string {
	cells := []string{r.Name, r.What, "-", "-", "-", "-", "-", "-", "-"}
	switch {
	case r.Failed != "":
		cells[2] = "failed"
		return cells
	case len(r.Samples) == 0:
		cells[2] = "skipped"
		return cells
	}
	cells[2], cells[3] = format(r.P50, r.Unit), format(r.P90, r.Unit)
	if len(r.Samples) > 1 {
		cells[4] = format(r.Lo, r.Unit) + " to " + format(r.Hi, r.Unit)
	} else {
		cells[3] = "-"
	}
	if r.BareP50 != 0 {
		cells[5], cells[6] = format(r.BareP50, r.Unit), fmt.Sprintf("%.2f", r.Ratio)
	}
	if r.Target != "" {
		cells[7], cells[8] = r.Target, "no"
		if r.Reached {
			cells[8] = "yes"
		}
	}
	return cells
}

var heading = []string{"name", "what", "p50", "p90", "95 % of p50, or range", "bare p50", "ratio", "target", "reached"}

// About is the line above a table: what the figures depend on.
func (r *Report) About() string {
	virtual := ""
	if r.Host.Virtual {
		virtual = ", a virtual machine"
	}
	return fmt.Sprintf("boxd %s, Linux %s%s, %d CPUs (%s), cgroups %s, load average at the start %s",
		r.Host.Version, r.Host.Kernel, virtual, r.Host.Processors, r.Host.Model, r.Host.Cgroups, r.Host.Load)
}

// WriteTable writes the report as Markdown.
func (r *Report) WriteTable(w io.Writer) {
	fmt.Fprintf(w, "%s\n\n", r.About())
	for _, warning := range r.Noise.Warnings {
		fmt.Fprintf(w, "**Noisy:** %s\n\n", warning)
	}
	lines := [][]string{slices.Clone(heading)}
	for _, row := range r.Rows {
		lines = append(lines, row.cells())
	}
	columns(w, lines)
	for _, note := range r.notes() {
		fmt.Fprintf(w, "\n%s\n", note)
	}
}

// notes are the sentences below the table.
func (r *Report) notes() (list []string) {
	var bare []string // what "bare" is, other than fork+exec
	rows := map[string][]string{}
	for _, row := range r.Rows {
		switch {
		case row.Skipped != "":
			list = append(list, row.Name+": skipped: "+row.Skipped)
		case row.Failed != "":
			list = append(list, row.Name+": failed: "+row.Failed)
		case row.Bare != "":
			if rows[row.Bare] == nil {
				bare = append(bare, row.Bare)
			}
			rows[row.Bare] = append(rows[row.Bare], row.Name)
		}
	}
	for _, what := range bare {
		list = append(list, "Bare is "+what+": "+strings.Join(rows[what], ", "))
	}
	for _, row := range r.Rows {
		if len(row.Args) > 0 {
			line := row.Name + ": " + strings.Join(row.Args, " ")
			if row.Omits != "" {
				line += " (it does without: " + row.Omits + ")"
			}
			list = append(list, line)
		}
	}
	return list
}

// columns writes lines, the first of which is the heading, as a Markdown table.
func columns(w io.Writer, lines [][]string) {
	widths := make([]int, len(lines[0]))
	for _, cells := range lines {
		for i, cell := range cells {
			cells[i] = strings.ReplaceAll(cell, "|", `\|`)
		}
		for i, cell := range cells {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for n, cells := range lines {
		for i, width := range widths {
			fmt.Fprintf(w, "| %s%s ", cells[i], strings.Repeat(" ", width-utf8.RuneCountInString(cells[i])))
		}
		fmt.Fprintln(w, "|")
		if n == 0 {
			for _, width := range widths {
				fmt.Fprint(w, "|", strings.Repeat("-", width+2))
			}
			fmt.Fprintln(w, "|")
		}
	}
}
