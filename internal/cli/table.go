package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/oneline"
)

// table prints rows of cells: in aligned columns on a terminal, otherwise with a tab between two
// cells. It replaces control characters, because cells may come from a box or another client.
type table struct {
	screen
	rows [][]string
}

func newTable(s screen, header ...string) *table {
	t := &table{screen: s}
	t.row(header...)
	return t
}

func (t *table) row(cells ...string) {
	for i, cell := range cells {
		cells[i] = printable(cell)
	}
	t.rows = append(t.rows, cells)
}

func (t *table) flush() error {
	var widths []int
	for _, row := range t.rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	for n, row := range t.rows {
		for i, cell := range row {
			last := i == len(row)-1
			b.WriteString(t.paint(cell, t.colourOf(n, i)))
			switch {
			case last:
				b.WriteByte('\n')
			case t.terminal:
				b.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)+2))
			default:
				b.WriteByte('\t')
			}
		}
	}
	_, err := io.WriteString(t.Writer, b.String())
	return err
}

// colourOf returns the colour of a cell. If the first row is in capitals, it names the columns.
// Otherwise each row begins with its name.
func (t *table) colourOf(row, column int) string {
	columns := t.rows[0][0] == strings.ToUpper(t.rows[0][0])
	switch {
	case columns && row == 0, !columns && column == 0:
		return bold
	case columns && column < len(t.rows[0]) && t.rows[0][column] == "STATE",
		!columns && (t.rows[row][0] == "state" || t.rows[row][0] == "available"):
		return stateColour(t.rows[row][column])
	}
	return ""
}

// printable is s without what a terminal would obey, or "-" if it is empty.
func printable(s string) string { return cmp.Or(oneline.Printable(s), "-") }

// printableLines is text that a program has written, without what a terminal would obey.
func printableLines(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if line != "" {
			lines[i] = printable(line)
		}
	}
	return strings.Join(lines, "\n")
}

// ago is the time since t, to about two digits.
func ago(now, t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return short(now.Sub(t))
}

func short(d time.Duration) string {
	switch d = max(d, 0); {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// limitText formats a limit; -1 is unlimited.
func limitText[N int64 | float64](n N, format func(N) string) string {
	if n == engine.Unlimited {
		return unlimited
	}
	return format(n)
}

// isRefused reports whether err means that no daemon listens at the address.
func isRefused(err error) bool {
	var op *net.OpError
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist) && errors.As(err, &op) && op.Op == "dial"
}
