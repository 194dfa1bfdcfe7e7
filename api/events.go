package api

import (
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

// heartbeat is the time after which a silent stream of events says that it is
// alive; a client that is gone is noticed by it.
const heartbeat = 15 * time.Second

// events sends what happens as server-sent events (WHATWG HTML, section 9.2).
func (c *call) events() error {
	since, err := c.lastEventID()
	if err != nil {
		return err
	}
	sub := c.s.opt.Sessions.Subscribe(c.listTenant(), since)
	defer sub.Close()
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
			return nil // the client is gone, which ends a stream as it should
		}
		c.w.Flush()
	}
}

// lastEventID is where a client wants to go on. Package session counts from 1.
func (c *call) lastEventID() (uint64, error) {
	text := c.r.Header.Get("Last-Event-ID")
	if text == "" {
		text = c.query("last_event_id")
	}
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, &engine.FieldError{Field: "last_event_id", Value: spec.Quote(text), Rule: "must be the id of an event"}
	}
	return n, nil
}

// eventText is e as it is on the wire. JSON has no line breaks.
func eventText(e *session.Event) ([]byte, error) {
	if e.Type == session.EventMissed {
		return fmt.Appendf(nil, "id: %d\nevent: missed\ndata: {\"missed\":%d}\n\n", e.Seq, missedCount(e)), nil
	}
	data, err := json.Marshal(apitypes.Event{
		ID: e.Seq, Time: e.Time, Type: string(e.Type), Tenant: e.Tenant, Session: e.Session, Box: e.Box,
		Process: e.Process, Request: e.Request, Details: e.Details,
	})
	return fmt.Appendf(nil, "id: %d\nevent: %s\ndata: %s\n\n", e.Seq, e.Type, data), err
}

func missedCount(e *session.Event) uint64 {
	switch n := e.Details["count"].(type) {
	case uint64:
		return n
	case int:
		return uint64(n)
	}
	return 0
}
