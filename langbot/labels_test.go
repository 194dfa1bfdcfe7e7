package langbot

import (
	"maps"
	"strings"
	"testing"

	"github.com/boxd/boxd/engine/spec"
)

// A session tells in boxd's own lists which workspace and session of LangBot it is, and goes on with
// other labels that somebody gave it.
func TestLabels(t *testing.T) {
	b := open(t)
	b.call("box_create_session", specOf("chat one", nil))
	b.call("box_create_session", specOf("x"+strings.Repeat("y", 300), nil)) // no label
	list := b.sessions.List("langbot")
	if len(list) != 2 {
		t.Fatalf("%+v", list)
	}
	base := spec.Labels{"langbot-instance": at.Instance, "langbot-workspace": at.Workspace}
	for _, v := range list {
		want := maps.Clone(base)
		if strings.HasSuffix(v.ID, "-chat-one") {
			want["langbot-session"] = "chat-one"
		}
		if !maps.Equal(v.Resolved.Labels, want) {
			t.Errorf("%s: %v, want %v", v.ID, v.Resolved.Labels, want)
		}
	}
}
