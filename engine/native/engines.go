package native

import (
	"context"
	"fmt"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native/rpc"
)

var _ engine.Choosing = (*Service)(nil)

// Engines implements engine.Choosing.
func (c *core) Engines(ctx context.Context, name, isolation string) ([]engine.EngineState, error) {
	var list rpc.EngineList
	if _, err := c.link.call(ctx, rpc.TypeEngines, rpc.Engines{Engine: name, Isolation: isolation}, &list); err != nil {
		return nil, fmt.Errorf("listing engines: %w", err)
	}
	return list.Engines, nil
}
