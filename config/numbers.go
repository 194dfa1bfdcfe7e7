package config

import (
	"cmp"
	"fmt"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
)

// validateNumbers checks sizes, counts and times. The bounds catch typing errors, and zeros
// that would have another meaning further down.
func (c *Config) validateNumbers() error {
	size := func(field string, n spec.Size, least, most int64) error {
		if int64(n) >= least && int64(n) <= most {
			return nil
		}
		return refuse(field, spec.FormatSize(int64(n)), fmt.Sprintf("must be %s to %s", spec.FormatSize(least), spec.FormatSize(most)))
	}
	count := func(field string, n, least, most int) error {
		if n >= least && n <= most {
			return nil
		}
		return refuse(field, fmt.Sprint(n), fmt.Sprintf("must be %d to %d", least, most))
	}
	length := func(field string, d spec.Duration, least, most time.Duration) error {
		if t := time.Duration(d); t >= least && t <= most {
			return nil
		}
		return refuse(field, d.String(), fmt.Sprintf("must be %s to %s", least, most))
	}
	outputLimit := c.Exec.OutputLimit
	if outputLimit == engine.Unlimited {
		outputLimit = 1
	}
	const day = 24 * time.Hour
	bound := func(field string, n spec.Size) error { // 0: none
		if n == 0 {
			return nil
		}
		return size(field, n, 16<<20, 1<<50)
	}
	return cmp.Or(
		size("audit.max_size", c.Audit.MaxSize, 64<<10, 1<<40),
		count("audit.keep", c.Audit.Keep, 1, 10000),
		length("sessions.idle_ttl", c.Sessions.IdleTTL, spec.MinIdleTTL, 366*day),
		count("pool", c.Pool, 0, engine.MaxPool),
		count("sessions.keep_ended", c.Sessions.KeepEnded, 1, 1000),
		length("sessions.stop_grace", c.Sessions.StopGrace, time.Millisecond, time.Hour),
		count("sessions.min_free", c.Sessions.MinFree, 0, 50),
		bound("images.max_size", c.Images.MaxSize),
		bound("images.tenant_size", c.Images.TenantSize),
		size("exec.output_limit", outputLimit, 1, spec.MaxMemory),
		size("exec.capture_limit", c.Exec.CaptureLimit, 1, 1<<30),
		count("history.session_entries", c.History.SessionEntries, 1, 1000000),
		size("history.session_size", c.History.SessionSize, 64<<10, 1<<30),
		size("history.tenant_size", c.History.TenantSize, int64(c.History.SessionSize), 1<<40),
		length("history.keep", c.History.Keep, time.Minute, 3660*day),
		length("history.keep_usage", c.History.KeepUsage, day, 36600*day),
		size("relay.history", c.Relay.History, engine.MinHistory, engine.MaxHistory),
		count("relay.max_clients", c.Relay.MaxClients, 1, 1<<20),
		size("http.max_body", c.HTTP.MaxBody, 4<<10, 64<<20),
		size("http.max_file", c.HTTP.MaxFile, 1, 1<<40),
		size("http.max_tree", c.HTTP.MaxTree, 1, 1<<50),
		count("http.max_connections", c.HTTP.MaxConnections, 16, 1<<20),
		length("http.header_timeout", c.HTTP.HeaderTimeout, 100*time.Millisecond, 5*time.Minute),
		length("http.idle_timeout", c.HTTP.IdleTimeout, time.Second, day),
	)
}
