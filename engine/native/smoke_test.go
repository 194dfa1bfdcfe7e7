package native

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/boxd/boxd/engine"
)

func TestSmoke(t *testing.T) {
	ctx := context.Background()
	e, err := Start(ctx, Options{InitPath: os.Getenv("BOXD_INIT"), StateDir: "/run/boxd-smoke"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}()
	began := time.Now()
	b, err := e.Create(ctx, engine.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	t.Log("create", time.Since(began))
	for range 3 {
		began = time.Now()
		r, err := engine.Run(ctx, b, engine.Command{Args: []string{"sh", "-c", "id; pwd; cat /proc/self/cgroup; ls -la / ; echo err >&2"}, Stdout: os.Stdout, Stderr: os.Stderr})
		t.Logf("%v %+v %v", time.Since(began), r, err)
	}
	t.Log(b.Remove(ctx))
}
