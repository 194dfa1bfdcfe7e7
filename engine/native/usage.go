package native

import (
	"context"
	"fmt"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native/rpc"
)

// Usage implements engine.LiveBox. The launcher reads the figures: so they cost an
// idle box no descriptor, and need neither privilege nor a view of cgroupfs here.
func (b *box) Usage() (engine.Usage, error) {
	var u engine.Usage
	if _, err := b.engine.link.call(context.Background(), rpc.TypeUsage, rpc.Box{ID: b.id}, &u); err != nil {
		return engine.Usage{}, fmt.Errorf("measuring box %q: %w", b.id, err)
	}
	return u, nil
}
