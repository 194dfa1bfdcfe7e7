package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/policy"
)

// codeBench has one language, whose program is echo.
func codeBench(t *testing.T) *bench {
	b := newBench(t)
	b.policy.Languages = map[string]policy.LanguageConfig{"l": {Command: &[]string{"echo", "{file}"}, File: ptr("f"), Env: &[]string{"A=language", "B={dir}"}}}
	b.start()
	return b
}

// placed is code that notes in log what happens to it. write returns the error of Write.
func placed(log *[]string, write func(engine.LiveBox) error) Exec {
	return Exec{Args: []string{"x"}, Env: []string{"A=request"}, Code: &Code{Language: "l", Dir: "/d",
		Write: func(_ context.Context, box engine.LiveBox, name string) error {
			*log = append(*log, "write "+name)
			return write(box)
		},
		Remove: func(engine.LiveBox) { *log = append(*log, "remove") },
	}}
}

// awaitTidy waits until code has been removed.
func (b *bench) awaitTidy(key Key) {
	s, err := b.find(key)
	if err != nil {
		b.t.Fatal(err)
	}
	s.tidying.Lock()
	s.tidying.Unlock()
}

func TestCode(t *testing.T) {
	b := codeBench(t)
	var log []string
	res, err := b.Exec(ctx, me, keyA, &policy.Request{}, placed(&log, func(engine.LiveBox) error { return nil }))
	b.awaitTidy(keyA)
	if err != nil || string(res.Stdout) != "/d/f x" || !slices.Equal(log, []string{"write f", "remove"}) {
		t.Errorf("%q, %v, %q", res.Stdout, err, log)
	}
	if env := b.host.Box(res.Session.Box).Last().Env; !slices.Equal(env, []string{"B=/d", "A=request"}) {
		t.Errorf("environment %q", env)
	}
}

// Code that cannot be written does not run, and the operator is not told of a full box.
func TestCodeUnwritten(t *testing.T) {
	b := codeBench(t)
	b.ensure(keyA, policy.Request{})
	full := errors.New("full")
	var log []string
	_, err := b.Exec(ctx, me, keyA, nil, placed(&log, func(engine.LiveBox) error { return full }))
	b.awaitTidy(keyA)
	if !errors.Is(err, full) || !errors.Is(err, ErrCodeUnwritten) || !slices.Equal(log, []string{"write f", "remove"}) {
		t.Errorf("%v, %q", err, log)
	}
	if !b.audit.has("exec", audit.Failed) || len(b.Errors()) != 0 || b.get(keyA).Execs != 0 {
		t.Errorf("errors %v, %+v", b.Errors(), b.get(keyA))
	}
	if use, _ := b.Quota("t"); use.Execs != 0 {
		t.Errorf("%d commands are counted", use.Execs)
	}
}

// If the box is lost while the code is written, or right after, it is written and run in the
// next one, and once.
func TestCodeBoxLost(t *testing.T) {
	for name, lost := range map[string]error{"while writing": fmt.Errorf("writing: %w", engine.ErrBoxLost), "may have written": fmt.Errorf("%w: %w", engine.ErrBoxLost, engine.ErrMayHaveRun), "after writing": nil} {
		b := codeBench(t)
		v := b.ensure(keyA, policy.Request{})
		var log []string
		res, err := b.Exec(ctx, me, keyA, nil, placed(&log, func(box engine.LiveBox) error {
			if box.ID() != v.Box {
				return nil
			}
			b.host.Kill(box.ID())
			return lost
		}))
		b.awaitTidy(keyA)
		if err != nil || string(res.Stdout) != "/d/f x" || !res.Session.Recreated || strings.Join(log, ", ") != "write f, write f, remove" {
			t.Errorf("%s: %+v, %v, %q", name, res, err, log)
		}
	}
}

// The answer does not wait for the removal of the code, but the next one does: removals do not pile up.
// If there are outputs to collect, the code is removed before.
func TestCodeRemoval(t *testing.T) {
	b := codeBench(t)
	b.ensure(keyA, policy.Request{})
	code := func(remove func(), collect func()) Exec {
		e := Exec{Code: &Code{Language: "l", Dir: "/d",
			Write:  func(context.Context, engine.LiveBox, string) error { return nil },
			Remove: func(engine.LiveBox) { remove() },
		}}
		if collect != nil {
			e.Collect = func(context.Context, engine.LiveBox) { collect() }
		}
		return e
	}
	removing, done := make(chan struct{}), make(chan struct{})
	if _, err := b.Exec(ctx, me, keyA, nil, code(func() { close(removing); <-done }, nil)); err != nil {
		t.Fatal(err)
	}
	<-removing
	if v := b.get(keyA); v.Execs != 0 {
		t.Errorf("the removal counts as a command: %+v", v)
	}
	second := 0
	if _, err := b.Exec(ctx, me, keyA, nil, code(func() { second++ }, nil)); err != nil || second != 1 {
		t.Errorf("removed %d times, %v", second, err)
	}
	close(done)
	b.awaitTidy(keyA)
	var log []string
	if _, err := b.Exec(ctx, me, keyA, nil, code(func() { log = append(log, "remove") }, func() { log = append(log, "collect") })); err != nil || !slices.Equal(log, []string{"remove", "collect"}) {
		t.Errorf("%q, %v", log, err)
	}
}
