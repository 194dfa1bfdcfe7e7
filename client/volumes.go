package client

import (
	"context"

	"github.com/boxd/boxd/api/apitypes"
)

// Volumes lists the volumes of the tenant, sorted by tenant and name.
func (c *Client) Volumes(ctx context.Context) ([]apitypes.Volume, error) {
	l, err := fetch[apitypes.VolumeList](ctx, c, call{method: "GET", path: []string{"volumes"}})
	return l.Volumes, err
}

// Volume returns a volume.
func (c *Client) Volume(ctx context.Context, name string) (apitypes.Volume, error) {
	return fetch[apitypes.Volume](ctx, c, call{method: "GET", path: []string{"volumes", name}})
}

// CreateVolume returns the volume that r describes and creates it if it does not exist;
// Volume.Created tells which. An existing volume with other limits, or one that was not made
// from r.From, is an error with apitypes.CodeVolumeExists. If ctx ends, a copy that is not
// complete is given up.
func (c *Client) CreateVolume(ctx context.Context, r apitypes.VolumeRequest) (apitypes.Volume, error) {
	return fetch[apitypes.Volume](ctx, c, call{method: "POST", path: []string{"volumes"}, body: r})
}

// ResizeVolume changes the limits of a volume, also while sessions have it.
func (c *Client) ResizeVolume(ctx context.Context, name string, u apitypes.VolumeUpdate) (apitypes.Volume, error) {
	return fetch[apitypes.Volume](ctx, c, call{method: "PATCH", path: []string{"volumes", name}, body: u})
}

// RemoveVolume removes a volume with its content. A volume that a session has is an error
// with apitypes.CodeVolumeInUse.
func (c *Client) RemoveVolume(ctx context.Context, name string) error {
	return c.do(ctx, call{method: "DELETE", path: []string{"volumes", name}}, nil)
}
