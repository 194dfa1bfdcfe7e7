package session

import (
	"maps"
	"testing"

	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
)

// Labels of a session and its processes survive a crash, and the audit log has those of the session.
func TestLabelsSurvive(t *testing.T) {
	b := open(t)
	b.ensure(keyA, policy.Request{Wishes: spec.Wishes{Name: "Ada's", Labels: spec.Labels{"team": "vision"}}})
	owner := "ada"
	if _, err := b.Update(ctx, me, keyA, spec.Update{Labels: map[string]*string{"owner": &owner}}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Start(ctx, me, keyA, nil, ProcessSpec{ID: "p", Args: []string{"wait"}, ProcessSettings: ProcessSettings{Labels: spec.Labels{"role": "web"}}}); err != nil {
		t.Fatal(err)
	}
	b.crash()
	b.start()
	want := spec.Labels{"team": "vision", "owner": "ada"}
	if v := b.get(keyA); !maps.Equal(v.Resolved.Labels, want) || v.Resolved.Name != "Ada's" {
		t.Errorf("%+v", v.Resolved)
	}
	if list, err := b.Processes(keyA); err != nil || len(list) != 1 || list[0].Labels["role"] != "web" {
		t.Errorf("%+v, %v", list, err)
	}
	told := map[string]bool{}
	b.audit.mu.Lock()
	defer b.audit.mu.Unlock()
	for _, e := range b.audit.list {
		if labels, ok := e.Details["labels"].(spec.Labels); ok {
			told[e.Action] = true
			if e.Action == "update" && !maps.Equal(labels, want) || e.Details["name"] != "Ada's" {
				t.Errorf("%+v", e)
			}
		}
	}
	if !told["create"] || !told["update"] {
		t.Errorf("the audit log has labels in %v", told)
	}
}
