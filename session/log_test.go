package session

import (
	"io"
	"log/slog"
	"testing"
)

// testLogger discards the log unless tests are verbose.
func testLogger(t testing.TB) *slog.Logger {
	if testing.Verbose() {
		return slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	return slog.New(slog.NewTextHandler(io.Discard, nil))
}
