package session

import (
	"fmt"
	"sync"
	"testing"

	"github.com/boxd/boxd/policy"
)

// BenchmarkExec is what a session adds to a command.
func BenchmarkExec(b *testing.B) {
	m := open(b)
	m.ensure(keyA, policy.Request{})
	for b.Loop() {
		if _, err := m.Exec(ctx, me, keyA, nil, Exec{Args: []string{"true"}}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkExecParallel(b *testing.B) {
	m := open(b)
	m.ensure(keyA, policy.Request{})
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := m.Exec(ctx, me, keyA, &policy.Request{}, Exec{Args: []string{"true"}}); err != nil {
				b.Error(err)
			}
		}
	})
}

// BenchmarkCreate is one session at a time, and removes it: four commits.
func BenchmarkCreate(b *testing.B) {
	m := open(b)
	for b.Loop() {
		m.ensure(keyA, policy.Request{})
		if err := m.Remove(ctx, me, keyA); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCreate100 is a hundred at once.
func BenchmarkCreate100(b *testing.B) {
	m := open(b)
	for b.Loop() {
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() { m.ensure(Key{"t", fmt.Sprint(i)}, policy.Request{}) })
		}
		wg.Wait()
		b.StopTimer()
		for i := range 100 {
			wg.Go(func() { m.Remove(ctx, me, Key{"t", fmt.Sprint(i)}) })
		}
		wg.Wait()
		b.StartTimer()
	}
}

// BenchmarkList has a thousand sessions.
func BenchmarkList(b *testing.B) {
	m := open(b)
	var wg sync.WaitGroup
	for i := range 1000 {
		wg.Go(func() { m.ensure(Key{"t", fmt.Sprint(i)}, policy.Request{}) })
	}
	wg.Wait()
	for b.Loop() {
		if n := len(m.List("")); n != 1000 {
			b.Fatal(n)
		}
		m.Stats()
	}
}

// BenchmarkReopen is what a crash with a thousand sessions costs.
func BenchmarkReopen(b *testing.B) {
	m := open(b)
	var wg sync.WaitGroup
	for i := range 1000 {
		wg.Go(func() { m.ensure(Key{"t", fmt.Sprint(i)}, policy.Request{}) })
	}
	wg.Wait()
	for b.Loop() {
		m.restart()
	}
}
