package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/internal/sse"
)

// Status reports whether the daemon can serve, and what it is running.
func (c *Client) Status(ctx context.Context) (apitypes.Status, error) {
	return fetch[apitypes.Status](ctx, c, call{method: "GET", path: []string{"status"}})
}

// Errors lists the daemon's recent errors, newest first.
func (c *Client) Errors(ctx context.Context) ([]apitypes.ErrorRecord, error) {
	l, err := fetch[apitypes.ErrorList](ctx, c, call{method: "GET", path: []string{"errors"}})
	return l.Errors, err
}

// Doctor returns what the daemon can check of its host. boxd doctor, on the host, checks more.
func (c *Client) Doctor(ctx context.Context) (apitypes.Doctor, error) {
	return fetch[apitypes.Doctor](ctx, c, call{method: "GET", path: []string{"doctor"}})
}

// Profiles lists the profiles that a session can be created with: defaults, caps and
// locked fields.
func (c *Client) Profiles(ctx context.Context) ([]apitypes.Profile, error) {
	l, err := fetch[apitypes.ProfileList](ctx, c, call{method: "GET", path: []string{"profiles"}})
	return l.Profiles, err
}

// DefaultProfile returns the profile that a session of the caller's tenant has unless it is created
// with another. It fails for a client of all tenants.
func (c *Client) DefaultProfile(ctx context.Context) (apitypes.Profile, error) {
	l, err := fetch[apitypes.ProfileList](ctx, c, call{method: "GET", path: []string{"profiles"}})
	if err != nil {
		return apitypes.Profile{}, err
	}
	for _, p := range l.Profiles {
		if p.Name == l.Default {
			return p, nil
		}
	}
	return apitypes.Profile{}, errors.New("the daemon names no default profile: ask for one tenant")
}

// Events is a subscription to events. The caller closes it. It is not safe for concurrent
// use, except that Close unblocks Next.
type Events struct {
	body   io.ReadCloser
	events *sse.Reader
	// LastID is the ID of the last event that Next returned. Pass it to Client.Events
	// to continue after it on a new connection.
	LastID string
}

// maxEvent bounds a line of the event stream.
const maxEvent = 1 << 20

// Events subscribes to what happens to sessions and processes: from now on if lastID is
// empty, otherwise after that event, as far as the daemon still keeps it. The
// subscription ends with ctx. It does not reconnect.
func (c *Client) Events(ctx context.Context, lastID string) (*Events, error) {
	q := call{method: "GET", path: []string{"events"}, accept: "text/event-stream"}
	if lastID != "" {
		q.query = map[string][]string{"last_event_id": {lastID}}
	}
	resp, err := c.send(ctx, q)
	if err != nil {
		return nil, err
	}
	return newEvents(resp.Body, lastID), nil
}

func newEvents(body io.ReadCloser, lastID string) *Events {
	return &Events{body: body, events: sse.NewReader(body, maxEvent), LastID: lastID}
}

// MissedError reports that events were skipped before the next one, because the
// subscriber was too slow or they are no longer kept. The subscription continues.
type MissedError struct {
	Missed uint64 // how many; 0 if that is not known
}

func (e *MissedError) Error() string {
	if e.Missed == 0 {
		return "events were missed"
	}
	return strconv.FormatUint(e.Missed, 10) + " events were missed"
}

// Next waits for the next event. After a [*MissedError] call it again. io.EOF means that
// the daemon has ended the stream.
func (e *Events) Next() (apitypes.Event, error) {
	next, err := e.events.Next()
	if err == io.EOF {
		return apitypes.Event{}, err
	} else if err != nil {
		return apitypes.Event{}, fmt.Errorf("events: %w", err)
	}
	if next.ID != "" {
		e.LastID = next.ID
	}
	var event apitypes.Event
	if next.Type == "missed" {
		var m apitypes.Missed
		if err := json.Unmarshal(next.Data, &m); err != nil {
			return event, fmt.Errorf("events: %w", err)
		}
		return event, &MissedError{m.Missed}
	}
	if err := json.Unmarshal(next.Data, &event); err != nil {
		return event, fmt.Errorf("events: %w", err)
	}
	return event, nil
}

// Close ends the subscription.
func (e *Events) Close() error { return e.body.Close() }
