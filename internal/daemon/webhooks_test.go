package daemon

import (
	"slices"
	"testing"

	"github.com/boxd/boxd/config"
	"github.com/boxd/boxd/session"
)

// The configuration knows the events that sessions announce.
func TestWebhookEvents(t *testing.T) {
	want := []string{string(session.EventProcessExited), string(session.EventProcessStopped), string(session.EventExpired), string(session.EventRemoved)}
	if !slices.Equal(config.WebhookEvents, want) {
		t.Errorf("%q, want %q", config.WebhookEvents, want)
	}
}
