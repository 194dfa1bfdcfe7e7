package api

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/session"
)

// heartbeat is the interval at which an idle event stream sends a comment, so that both
// sides notice when the other has gone.
const heartbeat = 15 * time.Second

// events sends the events as server-sent events (WHATWG HTML, section 9.2).
func (c *call) events() error {
	since, err := c.lastEventID()
	if err != nil {
		return err
	}
	sub := c.s.opt.Sessions.Subscribe(c.listTenant(), since)
	defer sub.Close()
	defer c.s.opt.Sessions.WatchPorts(c.listTenant())()
	ctx, cancel := c.untilStopped()
	defer cancel()
	c.w.Header().Set("Content-Type", sse)
	c.w.Header().Set("Cache-Control", "no-store")
	c.w.WriteHeader(http.StatusOK)
	c.w.Flush()
	tick := time.NewTicker(heartbeat)
	defer tick.Stop()
	for {
		var text []byte
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			text = []byte(": alive\n\n")
		case e, ok := <-sub.C:
			if !ok {
				return nil
			}
			if text, err = eventText(&e); err != nil {
				return err
			}
		}
		if _, err := c.w.Write(text); err != nil {
			return nil // the client has gone, which is a normal end of the stream
		}
		c.w.Flush()
	}
}

// lastEventID returns the event after which a client wants to continue; 0, which no event
// has, if it names none.
func (c *call) lastEventID() (uint64, error) {
	text := cmp.Or(c.r.Header.Get("Last-Event-ID"), c.query("last_event_id"))
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, &engine.FieldError{Field: "last_event_id", Value: spec.Quote(text), Rule: "must be the id of an event"}
	}
	return n, nil
}

// eventText returns e as it is sent. JSON has no line breaks.
func eventText(e *session.Event) ([]byte, error) {
	if e.Type == session.EventMissed {
		return fmt.Appendf(nil, "id: %d\nevent: missed\ndata: {\"missed\":%d}\n\n", e.Seq, e.Details["count"]), nil
	}
	data, err := json.Marshal(apitypes.Event{
		ID: e.Seq, Time: e.Time, Type: string(e.Type), Tenant: e.Tenant, Session: e.Session, Box: e.Box,
		Process: e.Process, Request: e.Request, Labels: e.Labels, Details: e.Details,
	})
	return fmt.Appendf(nil, "id: %d\nevent: %s\ndata: %s\n\n", e.Seq, e.Type, data), err
}
