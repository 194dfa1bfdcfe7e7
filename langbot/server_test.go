package langbot

import (
	"context"
	"strings"
	"testing"

	"github.com/boxd/boxd/langbot/protocol"
)

func TestFirstSlice(t *testing.T) {
	b := open(t)
	if out, err := b.try(context.Background(), nil, "__ping", object{}); err != nil || len(out) != 0 {
		t.Errorf("ping: %v, %v", out, err)
	}
	if out := b.call("box_init", object{"limits": object{"max_sessions": 3}, "unknown": 1}); out["initialized"] != true {
		t.Errorf("%v", out)
	}
	s := b.call("box_create_session", specOf("s", nil))
	if s["session_id"] != "s" || s["backend_name"] != "boxd" || s["image"] != protocol.DefaultImage || s["backend_session_id"] != b.host.Only().ID() {
		t.Errorf("%v", s)
	}
	r := b.call("box_exec", cmd("s", "exit 3"))
	if r["exit_code"] != 3.0 || r["status"] != "completed" || r["verdict"] != "exited" || r["session_id"] != "s" {
		t.Errorf("%v", r)
	}
	st := b.call("box_status", object{})
	if st["active_sessions"] != 1.0 || st["session_ttl_sec"] != 300.0 || st["limits"].(object)["max_sessions"] != 3.0 || st["backend"].(object)["available"] != true {
		t.Errorf("%v", st)
	}
	if out := b.call("box_delete_session", object{"session_id": "s"}); out["deleted"] != "s" {
		t.Errorf("%v", out)
	}
	if text := b.refused(protocol.SessionNotFound, "box_get_session", object{"session_id": "s"}); text != "session s not found" {
		t.Errorf("%q", text)
	}
	if ids := b.host.IDs(); len(ids) != 0 {
		t.Errorf("boxes %q are left", ids)
	}
}

func TestContext(t *testing.T) {
	b := open(t)
	ctx := context.Background()
	for name, c := range map[string]struct {
		at     *protocol.Context
		action string
		want   string
	}{
		"unknown action":        {&at, "__heartbeat", "ValueError: Action __heartbeat not found"},
		"tenant without":        {nil, "box_status", "PermissionError: box_status needs a context"},
		"host control without":  {nil, "box_health", ""},
		"host control of other": {&protocol.Context{Instance: "x", Workspace: "w", Generation: 1}, "box_health", ""},
	} {
		_, err := b.try(ctx, c.at, c.action, object{})
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	other := protocol.Context{Instance: "other", Workspace: "w", Generation: 1}
	for _, action := range []string{"box_health", "box_status"} {
		_, err := b.server.Do(ctx, b.conn("i"), protocol.Request{Action: action, Data: []byte("{}"), Context: &other})
		if err == nil || !strings.HasPrefix(err.Error(), "PermissionError: ") {
			t.Errorf("%s with the context of another instance: %v", action, err)
		}
	}
}
