package cli

import (
	"fmt"
	"io"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
)

// writeReceipt prints r for people, one figure per line. It says which times and peaks this host
// could not measure, and omits other missing figures.
func writeReceipt(w io.Writer, r engine.Receipt) {
	row := func(name, value string) { fmt.Fprintf(w, "  %-12s %s\n", name, value) }
	fmt.Fprintln(w, "receipt:")
	row("wall", duration(&r.Wall))
	row("user", duration(r.User))
	row("system", duration(r.System))
	row("memory peak", size(r.MemoryPeak))
	row("pids peak", count(r.PIDsPeak))
	for _, extra := range []struct {
		name   string
		figure *int64
		format func(*int64) string
	}{
		{"stdout", r.StdoutBytes, size},
		{"stderr", r.StderrBytes, size},
		{"read", r.IOReadBytes, size},
		{"written", r.IOWriteBytes, size},
	} {
		if extra.figure != nil {
			row(extra.name, extra.format(extra.figure))
		}
	}
	if r.Throttled != nil && *r.Throttled > 0 {
		row("throttled", duration(r.Throttled))
	}
	if r.OOMKills != nil && *r.OOMKills > 0 {
		row("oom kills", count(r.OOMKills))
	}
	if r.PIDsLimitReached != nil && *r.PIDsLimitReached > 0 {
		row("forks denied", count(r.PIDsLimitReached))
	}
}

const notMeasured = "not measured on this host"

func duration(d *time.Duration) string {
	switch {
	case d == nil:
		return notMeasured
	case *d < time.Second:
		return fmt.Sprintf("%.2f ms", float64(d.Microseconds())/1000)
	}
	return fmt.Sprintf("%.2f s", d.Seconds())
}

func size(n *int64) string {
	if n == nil {
		return notMeasured
	}
	return spec.FormatSize(*n)
}

func count(n *int64) string {
	if n == nil {
		return notMeasured
	}
	return fmt.Sprint(*n)
}
