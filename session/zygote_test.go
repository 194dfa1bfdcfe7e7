package session

import (
	"context"
	"errors"
	"testing"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
)

// Boxes of a session keep the interpreters of its profile warm, and a command can ask for one of them. A
// name that the profile does not have is refused before a session is created for the command.
func TestZygotes(t *testing.T) {
	b := newBench(t)
	b.policy.Profiles = map[string]policy.ProfileConfig{
		"warm": {Zygotes: &[]spec.Zygote{{Name: "py", Command: []string{"python3"}}}},
		"cold": {Extends: "warm", Zygotes: &[]spec.Zygote{}},
	}
	b.start()
	warm := policy.Request{Wishes: spec.Wishes{Profile: "warm"}}
	for name, tc := range map[string]struct {
		profile string
		e       Exec
	}{
		"no such name":        {"warm", Exec{Args: []string{"python3"}, Zygote: "ruby"}},
		"another interpreter": {"warm", Exec{Args: []string{"true"}, Zygote: "py"}},
		"none in the profile": {"cold", Exec{Args: []string{"python3"}, Zygote: "py"}},
	} {
		_, err := b.Exec(ctx, me, keyA, &policy.Request{Wishes: spec.Wishes{Profile: tc.profile}}, tc.e)
		bad, ok := errors.AsType[*engine.FieldError](err)
		if !ok || bad.Field != "zygote" || len(b.List("")) != 0 {
			t.Errorf("%s: %v; %d sessions", name, err, len(b.List("")))
		}
	}
	v := b.ensure(keyA, warm)
	if has := b.host.Box(v.Box).Spec().Zygotes; len(has) != 1 || has[0].Name != "py" {
		t.Errorf("the box has %+v", has)
	}
	ctx, cancel := context.WithCancel(ctx)
	ask := Exec{Args: []string{"python3"}, Zygote: "py", Started: func(engine.Process) { cancel() }} // it would run for ever
	if _, err := b.Exec(ctx, me, keyA, nil, ask); err != nil {
		t.Errorf("exec: %v", err)
	}
	if got := b.host.Box(v.Box).Last().Zygote; got != "py" {
		t.Errorf("the command asked for %q", got)
	}
}
