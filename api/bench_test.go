package api

import (
	"log/slog"
	"strconv"
	"testing"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/policy"
)

// BenchmarkExec is what client, socket, API and session add to a command.
func BenchmarkExec(b *testing.B) {
	f := serve(b, func(o *Options, _ *policy.Config) { o.Logger = slog.New(slog.DiscardHandler) })
	c := f.client()
	if _, err := c.Ensure(b.Context(), apitypes.SessionRequest{ID: "a"}); err != nil {
		b.Fatal(err)
	}
	q := apitypes.ExecRequest{Argv: []string{noop}}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Exec(b.Context(), "a", q); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkStatus is with 1,000 sessions.
func BenchmarkStatus(b *testing.B) {
	f := serve(b, func(o *Options, _ *policy.Config) { o.Logger = slog.New(slog.DiscardHandler) })
	c := f.client()
	for i := range 1000 {
		if _, err := c.Ensure(b.Context(), apitypes.SessionRequest{ID: strconv.Itoa(i)}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Status(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
