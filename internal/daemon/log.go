package daemon

import (
	"context"
	"io"
	"log"
	"log/slog"
	"slices"
)

// idKeys are the attributes that every line of the log begins with, if it has them.
var idKeys = []string{"tenant", "session", "box", "process", "request"}

// NewLogger returns a logger whose lines begin with the IDs of tenant, session, box, process and
// request, each at most once; empty ones are omitted. format is "json" or "text". level may change
// while the logger is in use.
func NewLogger(w io.Writer, format string, level slog.Leveler) *slog.Logger {
	options := &slog.HandlerOptions{Level: level}
	if format == "json" {
		return slog.New(&idHandler{next: slog.NewJSONHandler(w, options)})
	}
	return slog.New(&idHandler{next: slog.NewTextHandler(w, options)})
}

// catchStandardLog sends what libraries write to the standard logger to l, at level debug. net/http
// writes there what servers, which boxes choose, send at the wrong time.
func catchStandardLog(l *slog.Logger) {
	log.SetFlags(0)
	log.SetOutput(slog.NewLogLogger(l.Handler(), slog.LevelDebug).Writer())
}

// idHandler keeps the IDs among the attributes until the line is written.
type idHandler struct {
	next slog.Handler
	ids  [5]string // in the order of idKeys
	// grouped means that further attributes are in a group, so none of them is an ID.
	grouped bool
}

func (h *idHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.next.Enabled(ctx, level)
}

func (h *idHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	derived := *h
	derived.next = h.next.WithAttrs(derived.takeIDs(attrs))
	return &derived
}

func (h *idHandler) WithGroup(name string) slog.Handler {
	if name == "" {
		return h
	}
	derived := *h
	// The IDs belong in front of the group.
	derived.next = h.next.WithAttrs(h.attrs()).WithGroup(name)
	derived.grouped = true
	return &derived
}

func (h *idHandler) Handle(ctx context.Context, r slog.Record) error {
	if h.grouped {
		return h.next.Handle(ctx, r)
	}
	line := *h
	given := make([]slog.Attr, 0, r.NumAttrs())
	r.Attrs(func(a slog.Attr) bool {
		given = append(given, a)
		return true
	})
	rest := line.takeIDs(given)
	out := slog.NewRecord(r.Time, r.Level, r.Message, r.PC)
	out.AddAttrs(line.attrs()...)
	out.AddAttrs(rest...)
	return h.next.Handle(ctx, out)
}

// takeIDs keeps the IDs among attrs and returns the other attributes.
func (h *idHandler) takeIDs(attrs []slog.Attr) []slog.Attr {
	if h.grouped {
		return attrs
	}
	var rest []slog.Attr
	for _, a := range attrs {
		if i := slices.Index(idKeys, a.Key); i >= 0 {
			h.ids[i] = a.Value.Resolve().String()
		} else {
			rest = append(rest, a)
		}
	}
	return rest
}

// attrs returns the IDs that are not empty.
func (h *idHandler) attrs() []slog.Attr {
	attrs := make([]slog.Attr, 0, len(idKeys))
	for i, key := range idKeys {
		if h.ids[i] != "" {
			attrs = append(attrs, slog.String(key, h.ids[i]))
		}
	}
	return attrs
}
