package native

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native"
	"github.com/boxd/boxd/internal/testutil"
)

// TestLayersNeverHost: a box that asks for layers gets an error where they cannot be had, and never
// the host's root, whatever kind of launcher it has and whatever is wrong with the layers.
func TestLayersNeverHost(t *testing.T) {
	testutil.Long(t)
	bad := filepath.Join(dataParent(t), "data") // others may write to it
	ok(t, os.Mkdir(bad, 0o700))
	ok(t, os.Chmod(bad, 0o777))
	private, service := startLayers(t), startStorage(t, 0)
	open := &storage{t: t, dir: stateDir(t), data: bad}
	open.start()
	t.Cleanup(open.stop)
	bare, _ := newService(t)
	for _, c := range []struct {
		name   string
		create func(context.Context, engine.Spec) (engine.Box, error)
		data   string // empty: the launcher has none that it can use
	}{
		{"private without data directory", start(t).Create, ""},
		{"private with an open data directory", startLayersIn(t, bad).Create, ""},
		{"private", private.Create, private.data},
		{"service without data directory", anyBox(bare), ""},
		{"service with an open data directory", anyBox(open.Service), ""},
		{"service", anyBox(service.Service), service.data},
	} {
		refuses := func(what string, s engine.Spec, want error) {
			t.Helper()
			b, err := c.create(t.Context(), s)
			if err == nil {
				t.Errorf("%s: %s: the box has %q", c.name, what, run(t, b, engine.Command{Args: []string{"ls", "/"}}).Stdout)
				remove(t, b)
			} else if want != nil && !errors.Is(err, want) {
				t.Errorf("%s: %s: %v", c.name, what, err)
			}
		}
		missing := engine.ErrNoLayer
		if c.data == "" {
			missing = engine.ErrUnenforceable
		}
		refuses("a layer", engine.Spec{Layers: []string{idA}}, missing)
		refuses("a layer of an image", engine.Spec{Image: "example:1", Layers: []string{idA}}, missing)
		refuses("an image without layers", engine.Spec{Image: "example:1"}, engine.ErrInvalid)
		refuses("the host with a layer", engine.Spec{Image: "host", Layers: []string{idA}}, engine.ErrInvalid)
		if c.data == "" {
			continue
		}
		putLayer(t, c.data, idB, programs)
		refuses("one of two layers", engine.Spec{Layers: []string{idB, idA}}, missing)
		damaged := filepath.Join(c.data, "images", idA)
		for _, script := range []string{"true", "ln -s / fs", "echo >fs", "mknod fs c 0 0"} {
			ok(t, exec.Command("sh", "-ec", "mkdir -m 700 $1; cd $1; "+script, "sh", damaged).Run())
			refuses(script, engine.Spec{Layers: []string{idA}}, nil)
			ok(t, os.RemoveAll(damaged))
		}
	}
}

// anyBox is the method Create of an engine.Engine.
func anyBox(s *native.Service) func(context.Context, engine.Spec) (engine.Box, error) {
	return func(ctx context.Context, spec engine.Spec) (engine.Box, error) { return s.Create(ctx, spec) }
}
