package doctor

import (
	"fmt"
	"io"
	"strings"

	"github.com/boxd/boxd/internal/oneline"
)

// WriteText writes r for people. paint gives a status a colour; nil leaves it as it is.
func (r Report) WriteText(w io.Writer, paint func(text string, s Status) string) error {
	if paint == nil {
		paint = func(text string, _ Status) string { return text }
	}
	var b strings.Builder
	fmt.Fprintf(&b, "boxd %s on Linux %s %s\n\n", r.Version, r.Kernel, r.Machine)
	if r.Surroundings != "" {
		fmt.Fprintf(&b, "This %s.\n\n", r.Surroundings)
	}
	for _, c := range r.Checks {
		fmt.Fprintf(&b, "%s %-19s %s\n", paint(fmt.Sprintf("%-9s", c.Status), c.Status), c.Name, oneline.Text(c.Detail))
		if c.Mend != "" {
			fmt.Fprintf(&b, "%-29s mend: %s\n", "", c.Mend)
		}
		if c.Cause != "" {
			fmt.Fprintf(&b, "%-29s because: %s\n", "", oneline.Text(c.Cause))
		}
		if c.Command != "" {
			fmt.Fprintf(&b, "%-29s do: %s\n", "", c.Command)
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
