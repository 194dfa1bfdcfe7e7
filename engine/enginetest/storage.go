package enginetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
)

// Limit is a limit of a directory of the host.
type Limit struct{ Bytes, Inodes int64 }

// Volume returns a volume, or nil.
func (h *Host) Volume(name string) *engine.VolumeState {
	h.mu.Lock()
	defer h.mu.Unlock()
	v := h.volumes[name]
	if v == nil {
		return nil
	}
	state := *v
	return &state
}

// VolumeNames lists the volumes, sorted.
func (h *Host) VolumeNames() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Sorted(maps.Keys(h.volumes))
}

// Fill sets how many bytes of a volume are used.
func (h *Host) Fill(name string, used int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if v := h.volumes[name]; v != nil {
		v.UsedBytes = used
	}
}

// LoseVolume removes a volume as an accident would, without a client.
func (h *Host) LoseVolume(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.volumes, name)
}

// RefuseVolumes makes MakeVolume fail with err; nil ends that.
func (h *Host) RefuseVolumes(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.noVolumes = err
}

// Listed returns how often clients have listed the volumes.
func (h *Host) Listed() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.listed
}

// Limit returns the limit of a directory.
func (h *Host) Limit(dir string) Limit {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.limits[dir]
}

// SetLimit sets the limit of a directory without a client.
func (h *Host) SetLimit(dir string, l Limit) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.limits[dir] = l
}

// RefuseLimits makes LimitDirectory fail with err; nil ends that.
func (h *Host) RefuseLimits(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.noLimits = err
}

// Limitings lists all calls of LimitDirectory, including refused ones: path, bytes and inodes.
func (h *Host) Limitings() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.limitings)
}

// MakeVolume makes a volume, copies one, or enlarges it.
func (c *Client) MakeVolume(ctx context.Context, v engine.Volume) error {
	if err := c.pass(ctx, "make-volume", v.Name); err != nil {
		return err
	}
	if err := v.Validate(); err != nil {
		return err
	}
	if err := c.host.makeVolume(v); err != nil {
		return err
	}
	return c.pass(ctx, "made-volume", v.Name)
}

func (h *Host) makeVolume(v engine.Volume) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.noVolumes != nil {
		return h.noVolumes
	}
	old, from := h.volumes[v.Name], h.volumes[v.From]
	switch {
	case v.From != "" && old != nil:
		return nil
	case v.From != "" && from == nil:
		return &engine.FieldError{Field: "mount volume", Value: spec.Quote(v.From), Rule: "does not exist"}
	case v.From != "":
		h.volumes[v.Name] = &engine.VolumeState{Volume: engine.Volume{Name: v.Name, Bytes: v.Bytes, Inodes: v.Inodes}, UsedBytes: from.UsedBytes, By: engine.ByImage}
		if h.dir == "" {
			return nil
		}
		return os.CopyFS(h.volumeDir(v.Name), os.DirFS(h.volumeDir(v.From)))
	case old == nil:
		h.volumes[v.Name] = &engine.VolumeState{Volume: v, By: engine.ByImage}
	case old.Bytes > v.Bytes:
		return &engine.FieldError{Field: "volume.bytes", Value: spec.FormatSize(v.Bytes), Rule: "cannot become smaller"}
	default:
		old.Volume = v
	}
	if h.dir == "" {
		return nil
	}
	return os.MkdirAll(h.volumeDir(v.Name), 0o700)
}

func (h *Host) volumeDir(name string) string { return filepath.Join(h.dir, "volumes", name) }

// RemoveVolume removes a volume that no box has mounted.
func (c *Client) RemoveVolume(ctx context.Context, name string) error {
	if err := c.pass(ctx, "remove-volume", name); err != nil {
		return err
	}
	if err := c.host.removeVolume(name); err != nil {
		return err
	}
	return c.pass(ctx, "removed-volume", name)
}

func (h *Host) removeVolume(name string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for id, b := range h.boxes {
		if slices.ContainsFunc(b.Spec().Mounts, func(m spec.Mount) bool { return m.Volume == name }) {
			return fmt.Errorf("volume %q is busy in box %q", name, id)
		}
	}
	delete(h.volumes, name)
	if h.dir == "" {
		return nil
	}
	return os.RemoveAll(h.volumeDir(name))
}

// Volumes lists the volumes by name.
func (c *Client) Volumes(ctx context.Context) ([]engine.VolumeState, error) {
	if err := c.pass(ctx, "volumes", ""); err != nil {
		return nil, err
	}
	h := c.host
	h.mu.Lock()
	defer h.mu.Unlock()
	h.listed++
	var list []engine.VolumeState
	for _, name := range slices.Sorted(maps.Keys(h.volumes)) {
		v := *h.volumes[name]
		v.Volume = v.WithDefaults()
		list = append(list, v)
	}
	return list, nil
}

// OpenDirectory opens a directory of the machine that runs the test. For a Mappable one the
// hook's operation is "map".
func (c *Client) OpenDirectory(ctx context.Context, d engine.Directory) (*os.File, error) {
	op := "open-directory"
	if d.Mappable {
		op = "map"
	}
	if err := c.pass(ctx, op, d.Path); err != nil {
		return nil, err
	}
	if err := d.Validate(); err != nil {
		return nil, err
	}
	name := d.Path
	if d.Volume != "" {
		if c.host.dir == "" {
			return nil, errors.New("the volumes of this host are no directories")
		}
		name = filepath.Join(c.host.volumeDir(d.Volume), d.Path)
	}
	if d.Make {
		if err := os.MkdirAll(name, 0o700); err != nil {
			return nil, err
		}
	}
	return os.OpenFile(name, os.O_RDONLY|syscall.O_DIRECTORY, 0)
}

// LimitDirectory records the limit of a directory of the host.
func (c *Client) LimitDirectory(ctx context.Context, d engine.Directory, bytes, inodes int64) error {
	if err := c.pass(ctx, "limit-directory", d.Path); err != nil {
		return err
	}
	if err := d.Validate(); err != nil {
		return err
	}
	h := c.host
	h.mu.Lock()
	defer h.mu.Unlock()
	h.limitings = append(h.limitings, fmt.Sprint(d.Path, " ", bytes, " ", inodes))
	if h.noLimits != nil {
		return h.noLimits
	}
	h.limits[d.Path] = Limit{bytes, inodes}
	return nil
}
