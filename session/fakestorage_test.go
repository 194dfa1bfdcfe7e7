package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
)

// fakeVolume is a volume of a fakeHost.
type fakeVolume struct {
	engine.Volume
	used int64
}

var _ engine.Storage = (*fakeClient)(nil)

func (h *fakeHost) volume(name string) *fakeVolume {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.volumes[name]
}

// volumeNames lists the volumes that there are, sorted.
func (h *fakeHost) volumeNames() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Sorted(maps.Keys(h.volumes))
}

func (h *fakeHost) fill(name string, used int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.volumes[name].used = used
}

func (c *fakeClient) MakeVolume(ctx context.Context, v engine.Volume) error {
	if err := c.before(ctx, "make-volume", v.Name); err != nil {
		return err
	}
	if err := v.Validate(); err != nil {
		return err
	}
	h := c.host
	h.mu.Lock()
	if h.noVolumes != nil {
		defer h.mu.Unlock()
		return h.noVolumes
	}
	if old := h.volumes[v.Name]; old == nil {
		h.volumes[v.Name] = &fakeVolume{Volume: v}
	} else if old.Bytes > v.Bytes {
		defer h.mu.Unlock()
		return &engine.FieldError{Field: "volume.bytes", Value: spec.FormatSize(v.Bytes), Rule: "cannot become smaller"}
	} else {
		old.Volume = v
	}
	h.mu.Unlock()
	return c.before(ctx, "made-volume", v.Name)
}

func (c *fakeClient) RemoveVolume(ctx context.Context, name string) error {
	if err := c.before(ctx, "remove-volume", name); err != nil {
		return err
	}
	if err := c.host.removeVolume(name); err != nil {
		return err
	}
	return c.before(ctx, "removed-volume", name)
}

func (h *fakeHost) removeVolume(name string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for id, b := range h.boxes {
		if b.mounts(name) {
			return fmt.Errorf("volume %q is busy in box %q", name, id)
		}
	}
	delete(h.volumes, name)
	return nil
}

// mounts reports whether the box has the volume mounted.
func (b *fakeBox) mounts(volume string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.ContainsFunc(b.spec.Mounts, func(m mount) bool { return m.Volume == volume })
}

func (c *fakeClient) Volumes(ctx context.Context) ([]engine.VolumeState, error) {
	if err := c.before(ctx, "volumes", ""); err != nil {
		return nil, err
	}
	h := c.host
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asked++
	var list []engine.VolumeState
	for _, v := range h.volumes {
		list = append(list, engine.VolumeState{Volume: v.Volume.WithDefaults(), UsedBytes: v.used, By: engine.ByImage})
	}
	slices.SortFunc(list, func(a, b engine.VolumeState) int { return cmp.Compare(a.Name, b.Name) })
	return list, nil
}

// OpenDirectory makes directories of the machine that the test runs on.
func (c *fakeClient) OpenDirectory(ctx context.Context, d engine.Directory) (*os.File, error) {
	if err := c.before(ctx, "open-directory", d.Path); err != nil {
		return nil, err
	}
	if err := d.Validate(); err != nil {
		return nil, err
	}
	if d.Volume != "" {
		return nil, errors.New("not here")
	}
	if d.Make {
		if err := os.MkdirAll(d.Path, 0o700); err != nil {
			return nil, err
		}
	}
	return os.Open(d.Path)
}

func (c *fakeClient) LimitDirectory(ctx context.Context, d engine.Directory, bytes, inodes int64) error {
	if err := c.before(ctx, "limit-directory", d.Path); err != nil {
		return err
	}
	if err := d.Validate(); err != nil {
		return err
	}
	h := c.host
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.noLimits != nil {
		return h.noLimits
	}
	h.limits[d.Path] = [2]int64{bytes, inodes}
	return nil
}

// unmounted reports a volume that spec needs and that is not there. h.mu is held.
func (h *fakeHost) unmounted(spec engine.Spec) error {
	for _, m := range spec.Mounts {
		if m.Volume != "" && h.volumes[m.Volume] == nil {
			return fmt.Errorf("volume %q does not exist", m.Volume)
		}
	}
	return nil
}
