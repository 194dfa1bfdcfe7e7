package session

import (
	"fmt"
	"math"
	"testing"

	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/policy"
)

func TestEvents(t *testing.T) {
	b := open(t)
	mine, all := b.Subscribe("t", 0), b.Subscribe("", 0)
	defer all.Close()
	b.ensure(Key{"other", "x"}, policy.Request{})
	b.exec(keyA, "exit", "1")
	await(t, b.launch(keyA, "p", "exit", "2").Done(), "the end")
	var last uint64
	for _, want := range []EventType{EventCreated, EventExecStarted, EventExecEnded, EventProcessStarted, EventProcessExited} {
		e := <-mine.C
		if e.Type != want || e.Tenant != "t" || e.Session != "a" || e.Seq <= last || e.Time.IsZero() {
			t.Errorf("%+v, want %s", e, want)
		}
		last = e.Seq
	}
	if e := <-all.C; e.Tenant != "other" {
		t.Errorf("%+v", e)
	}
	mine.Close()
	mine.Close()
	for range mine.C {
	}
	b.Close(ctx, false)
	for range all.C { // ends
	}
}

func TestEventReplay(t *testing.T) {
	b := newBroker(1)
	for range 10 {
		b.publish(Event{Type: EventState, Tenant: "t"})
		b.publish(Event{Type: EventState, Tenant: "u"})
	}
	s := b.subscribe("t", b.first+10)
	defer s.Close()
	for want := b.first + 11; want <= b.first+20; want += 2 {
		if e := <-s.C; e.Seq != want || e.Tenant != "t" {
			t.Errorf("%+v, want %d", e, want)
		}
	}
	for range keepEvents {
		b.publish(Event{Type: EventState})
	}
	old := b.subscribe("", b.first+5)
	defer old.Close()
	if e := <-old.C; e.Type != EventMissed || e.Details["count"] != uint64(15) {
		t.Errorf("%+v", e)
	}
	if e := <-old.C; e.Seq != b.first+21 {
		t.Errorf("%+v", e)
	}
	ahead := b.subscribe("", math.MaxUint64) // a client's word is not believed
	defer ahead.Close()
	if n := len(ahead.ch); n != 0 {
		t.Errorf("%d events after the last number", n)
	}
	if len(b.kept) != keepEvents {
		t.Errorf("%d are kept", len(b.kept))
	}
}

func TestSlowSubscriberIsTold(t *testing.T) {
	b := newBroker(1)
	s := b.subscribe("", 0)
	defer s.Close()
	const n = eventQueue + 10
	for range n {
		b.publish(Event{Type: EventState})
	}
	if _, missed := b.stats(); missed != 10 {
		t.Errorf("%d missed", missed)
	}
	for range 5 {
		<-s.C
	}
	b.publish(Event{Type: EventState})
	for range eventQueue - 5 {
		<-s.C
	}
	if e := <-s.C; e.Type != EventMissed || e.Details["count"] != uint64(10) || e.Seq != b.first+n {
		t.Errorf("%+v", e)
	}
	if e := <-s.C; e.Seq != b.first+n+1 {
		t.Errorf("%+v", e)
	}
}

func TestErrorsAreBounded(t *testing.T) {
	b := open(t)
	for i := range keepErrors + 5 {
		b.report(keyA, "", fmt.Sprintf("error %d\nof two lines", i))
	}
	list := b.Errors()
	if len(list) != keepErrors || list[0].Message != "error 104; of two lines" || list[99].Message != "error 5; of two lines" {
		t.Errorf("%d, from %q to %q", len(list), list[0].Message, list[len(list)-1].Message)
	}
}

// The end of a session is published and counted before another one can have its ID.
func TestRemovalIsToldBeforeTheNext(t *testing.T) {
	b := newBench(t)
	var early, there, told bool
	b.audit.told = func(e audit.Entry) {
		if e.Action != string(EventRemoved) {
			return
		}
		told = true
		early = b.Stats().Removed == 1
		_, err := b.Get(keyA)
		there = err == nil
	}
	b.start()
	b.ensure(keyA, policy.Request{})
	sub := b.Subscribe("t", 0)
	defer sub.Close()
	if err := b.Remove(ctx, me, keyA); err != nil {
		t.Fatal(err)
	}
	if !told || !early || !there {
		t.Errorf("told %v, counted %v, the id was taken %v", told, early, there)
	}
	b.ensure(keyA, policy.Request{})
	for _, want := range []EventType{EventState, EventRemoved, EventCreated} {
		if e := <-sub.C; e.Type != want {
			t.Errorf("%+v, want %s", e, want)
		}
	}
}
