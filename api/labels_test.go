package api

import (
	"encoding/json"
	"errors"
	"maps"
	"net/url"
	"strings"
	"testing"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/session"
)

func TestLabels(t *testing.T) {
	f := serve(t, nil)
	c, ctx := f.client(), t.Context()
	for id, labels := range map[string]apitypes.Labels{"a": {"team": "vision", "owner": "ada"}, "b": {"team": "robots"}, "c": nil} {
		s, err := c.Ensure(ctx, apitypes.SessionRequest{ID: id, SessionSpec: apitypes.SessionSpec{Labels: labels, Name: "Session " + id}})
		if err != nil || !maps.Equal(s.Labels, labels) || s.Name != "Session "+id {
			t.Fatalf("%+v, %v", s, err)
		}
	}
	ids := func(labels ...string) string {
		t.Helper()
		list, err := c.Sessions(ctx, labels...)
		if err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, s := range list {
			ids = append(ids, s.ID)
		}
		return strings.Join(ids, " ")
	}
	for _, c := range []struct{ labels, want string }{{"", "a b c"}, {"team=vision", "a"}, {"team", "a b"}, {"team owner=ada", "a"}, {"owner=eve", ""}} {
		if got := ids(strings.Fields(c.labels)...); got != c.want {
			t.Errorf("labels %q: %q, want %q", c.labels, got, c.want)
		}
	}
	if p := f.problem("GET", "/v1/sessions?label="+url.QueryEscape("a b"), adminToken, ""); p.Code != apitypes.CodeInvalid || p.Field != "label" {
		t.Errorf("%+v", p)
	}

	// Live changes, of which all or nothing holds.
	sub := f.sessions.Subscribe(DefaultTenant, 0)
	defer sub.Close()
	owner, name := "eve", "renamed"
	s, err := c.Update(ctx, "a", apitypes.SessionUpdate{Name: &name, Labels: map[string]*string{"owner": &owner, "team": nil, "new": &name}})
	if err != nil || s.Name != name || !maps.Equal(s.Labels, apitypes.Labels{"owner": "eve", "new": "renamed"}) {
		t.Errorf("%+v, %v", s, err)
	}
	bad := "\x00"
	if _, err := c.Update(ctx, "a", apitypes.SessionUpdate{Name: &bad, Labels: map[string]*string{"new": nil}}); !client.IsCode(err, apitypes.CodeInvalid) {
		t.Errorf("%v", err)
	}
	if s, err := c.Session(ctx, "a"); err != nil || s.Name != name || len(s.Labels) != 2 {
		t.Errorf("%+v, %v", s, err)
	}
	// A request that asks for other labels is for another session.
	_, err = c.Ensure(ctx, apitypes.SessionRequest{ID: "a", SessionSpec: apitypes.SessionSpec{Labels: apitypes.Labels{"owner": "ada", "new": "renamed"}}})
	if e, ok := errors.AsType[*client.Error](err); !ok || e.Code != apitypes.CodeSessionConflict || len(e.Conflicts) != 1 || e.Conflicts[0].Field != "labels.owner" {
		t.Errorf("%v", err)
	}

	// Processes have their own, and events have both.
	if _, err := c.Start(ctx, "a", apitypes.ProcessRequest{ID: "p", Argv: []string{"cat"}, Labels: apitypes.Labels{"role": "web", "owner": "p"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Start(ctx, "a", apitypes.ProcessRequest{ID: "q", Argv: []string{"cat"}}); err != nil {
		t.Fatal(err)
	}
	if list, err := c.Processes(ctx, "a", "role=web"); err != nil || len(list) != 1 || list[0].ID != "p" || list[0].Labels["owner"] != "p" {
		t.Errorf("%+v, %v", list, err)
	}
	if p := f.problem("POST", "/v1/sessions/a/processes", adminToken, `{"id":"r","argv":["cat"],"labels":{"":"x"}}`); p.Code != apitypes.CodeInvalid || p.Field != "labels" {
		t.Errorf("%+v", p)
	}
	for e := range sub.C {
		if e.Type != session.EventProcessStarted {
			continue
		}
		text, err := eventText(&e)
		if err != nil {
			t.Fatal(err)
		}
		_, data, _ := strings.Cut(string(text), "data: ")
		var sent apitypes.Event
		if err := json.Unmarshal([]byte(data), &sent); err != nil || !maps.Equal(sent.Labels, apitypes.Labels{"owner": "p", "new": "renamed", "role": "web"}) {
			t.Errorf("%s, %v", text, err)
		}
		break
	}
}
