package native

import (
	"context"
	"os"
	"os/exec"
	"testing"

	"github.com/boxd/boxd/engine"
)

func benchEngine(b *testing.B) *Engine {
	e, err := Start(context.Background(), Options{InitPath: os.Getenv("BOXD_INIT"), StateDir: "/run/boxd-smoke"})
	if err != nil {
		b.Fatal(err)
	}
	_ = 0
	return e
}

func BenchmarkBare(b *testing.B) {
	for b.Loop() {
		if err := exec.Command("/bin/true").Run(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkExec(b *testing.B) {
	e := benchEngine(b)
	ctx := context.Background()
	box, err := e.Create(ctx, engine.Spec{})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		r, err := engine.Run(ctx, box, engine.Command{Args: []string{"/bin/true"}})
		if err != nil || r.ExitCode != 0 {
			b.Fatal(r, err)
		}
	}
}

func BenchmarkCreate(b *testing.B) {
	e := benchEngine(b)
	ctx := context.Background()
	for b.Loop() {
		box, err := e.Create(ctx, engine.Spec{})
		if err != nil {
			b.Fatal(err)
		}
		r, err := engine.Run(ctx, box, engine.Command{Args: []string{"/bin/true"}})
		if err != nil || r.ExitCode != 0 {
			b.Fatal(r, err)
		}
		b.StopTimer()
		if err := box.Remove(ctx); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}
