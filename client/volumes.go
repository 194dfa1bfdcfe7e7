package client

import (
	"context"
	"net/url"

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

// MarkVolume makes a volume sensitive, and with it every session that has it: they have no
// network, for good.
func (c *Client) MarkVolume(ctx context.Context, name string) (apitypes.Volume, error) {
	on := true
	return c.ResizeVolume(ctx, name, apitypes.VolumeUpdate{Sensitive: &on})
}

// SensitivePaths lists the paths of the host that sensitive sessions could write to. It needs a
// viewer of all tenants.
func (c *Client) SensitivePaths(ctx context.Context) ([]apitypes.SensitivePath, error) {
	l, err := fetch[apitypes.SensitivePathList](ctx, c, call{method: "GET", path: []string{"sensitive-paths"}})
	return l.Paths, err
}

// ForgetSensitivePath forgets that a path of the host is sensitive, which no session may have
// then. It needs an administrator.
func (c *Client) ForgetSensitivePath(ctx context.Context, path string) error {
	return c.do(ctx, call{method: "DELETE", path: []string{"sensitive-paths"}, query: url.Values{"path": {path}}}, nil)
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
