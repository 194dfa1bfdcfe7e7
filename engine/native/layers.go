package native

import (
	"context"
	"fmt"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native/rpc"
	"github.com/boxd/boxd/engine/spec"
)

var (
	_ engine.Layers = (*Engine)(nil)
	_ engine.Layers = (*Service)(nil)
)

// MakeLayer implements engine.Layers.
func (c *core) MakeLayer(ctx context.Context, name string) error {
	if err := engine.ValidateLayerName("layer", name); err != nil {
		return err
	}
	return c.onLayer(ctx, "making", name, rpc.TypeMakeLayer, rpc.Layer{Name: name})
}

// PublishLayer implements engine.Layers.
func (c *core) PublishLayer(ctx context.Context, name, id string) error {
	if err := engine.ValidateLayerName("layer", name); err != nil {
		return err
	}
	if err := engine.ValidateLayerID("id", id); err != nil {
		return err
	}
	return c.onLayer(ctx, "publishing", name, rpc.TypePublishLayer, rpc.PublishLayer{Name: name, ID: id})
}

// AbandonLayer implements engine.Layers.
func (c *core) AbandonLayer(ctx context.Context, name string) error {
	if err := engine.ValidateLayerName("layer", name); err != nil {
		return err
	}
	return c.onLayer(ctx, "abandoning", name, rpc.TypeAbandonLayer, rpc.Layer{Name: name})
}

// RemoveLayer implements engine.Layers.
func (c *core) RemoveLayer(ctx context.Context, id string) error {
	if err := engine.ValidateLayerID("id", id); err != nil {
		return err
	}
	return c.onLayer(ctx, "removing", id, rpc.TypeRemoveLayer, rpc.RemoveLayer{ID: id})
}

func (c *core) onLayer(ctx context.Context, doing, layer string, typ byte, ask any) error {
	if _, err := c.link.call(ctx, typ, ask, nil); err != nil {
		return fmt.Errorf("%s layer %s: %w", doing, spec.Quote(layer), err)
	}
	return nil
}

// Layers implements engine.Layers.
func (c *core) Layers(ctx context.Context) ([]string, error) {
	var all []string
	for {
		var ask rpc.Layers
		if len(all) > 0 {
			ask.After = all[len(all)-1]
		}
		var list rpc.LayerList
		if _, err := c.link.call(ctx, rpc.TypeLayers, ask, &list); err != nil {
			return nil, fmt.Errorf("listing layers: %w", err)
		}
		all = append(all, list.IDs...)
		if !list.More || len(list.IDs) == 0 {
			return all, nil
		}
	}
}
