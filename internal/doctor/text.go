package doctor

import (
	"fmt"
	"io"
	"strings"
)

// WriteText writes r for people.
func (r Report) WriteText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "boxd %s on Linux %s %s\n\n", r.Version, r.Kernel, r.Machine)
	for _, c := range r.Checks {
		fmt.Fprintf(&b, "%-9s %-19s %s\n", c.Status, c.Name, oneLine(c.Detail))
		if c.Mend != "" {
			fmt.Fprintf(&b, "%-29s mend: %s\n", "", c.Mend)
		}
	}
	if r.OK {
		b.WriteString("\nBoxes can be built here.\n")
	} else {
		b.WriteString("\nBoxes cannot be built here.\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func oneLine(s string) string { return strings.ReplaceAll(strings.TrimSpace(s), "\n", "; ") }
