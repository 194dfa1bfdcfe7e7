package session

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/policy"
)

// The end of a lost box is published, with its ID, before another box exists.
func TestLostIsToldBeforeRecreated(t *testing.T) {
	b := open(t)
	first := b.ensure(keyA, policy.Request{})
	sub := b.Subscribe("t", 0)
	defer sub.Close()
	b.Manager.errors.mu.Lock() // telling operators is slow
	b.host.Kill(first.Box)
	b.eventually("the failure", func() bool { return b.get(keyA).State == Failed })
	b.ensure(keyA, policy.Request{})
	b.Manager.errors.mu.Unlock()
	for _, want := range []EventType{EventState, EventRecreated} {
		if e := <-sub.C; e.Type != want || (e.Box == first.Box) != (want == EventState) {
			t.Errorf("%+v, want %s", e, want)
		}
	}
}

// The end of a process is published before its ID, or that of its session, can be used again.
func TestEndOfAProcessIsToldFirst(t *testing.T) {
	b := newBench(t)
	told := make(chan bool, 1)
	var p *Process
	b.audit.told = func(e audit.Entry) {
		if e.Action == string(EventProcessExited) {
			told <- !isDone(p.Done())
		}
	}
	b.start()
	p = b.launch(keyA, "p", "serve")
	b.host.Box(p.View().Box).Process(p.View().Key).Exit(1)
	await(t, p.Done(), "the end")
	if !<-told {
		t.Error("it had ended before that was told")
	}
}

// The failure to create a session is published before another one can have its ID.
func TestFailedCreationIsToldBeforeTheNext(t *testing.T) {
	b := newBench(t)
	told, taken := false, false
	b.audit.told = func(e audit.Entry) {
		if e.Action == "create" && e.Decision == audit.Failed {
			told = true
			_, err := b.Get(keyA)
			taken = err == nil
		}
	}
	b.start()
	b.host.SetHook(func(_ context.Context, op, _ string) error {
		if op == "create" {
			return errors.New("boom")
		}
		return nil
	})
	if _, err := b.Ensure(ctx, me, keyA, policy.Request{}); err == nil {
		t.Fatal("made")
	}
	if !told || !taken {
		t.Errorf("told %v, the id was taken %v", told, taken)
	}
}

// Events of a box follow the event of its session.
func TestCreatedComesFirst(t *testing.T) {
	b := open(t)
	b.host.SetHook(func(_ context.Context, op, box string) error {
		if op == "created" {
			b.host.Kill(box)
		}
		return nil
	})
	for i := range 20 {
		key := Key{"t", fmt.Sprint(i)}
		sub := b.Subscribe("t", 0)
		b.ensure(key, policy.Request{})
		for want := []EventType{EventCreated, EventState}; len(want) > 0; {
			e := <-sub.C
			if e.Session != key.ID {
				continue
			}
			if e.Type != want[0] {
				t.Errorf("%+v, want %s", e, want[0])
			}
			want = want[1:]
		}
		sub.Close()
	}
}
