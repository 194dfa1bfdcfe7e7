package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
)

// SnapshotVolume makes a named volume of tenant with the content of the volume from. Limits of 0
// are those of from. While it is copied, sessions can have from read-only; if one has it
// read-write, the error is ErrVolumeInUse. If ctx ends, nothing is left of the copy.
//
// If the volume exists and was made from the same volume, SnapshotVolume returns it as it is now.
func (m *Manager) SnapshotVolume(ctx context.Context, c Caller, tenant, name, from string, l VolumeLimits) (VolumeView, error) {
	if err := cmp.Or(policy.ValidateTenant(tenant), policy.ValidateVolumeName(name)); err != nil {
		return VolumeView{}, err
	}
	if bad, ok := errors.AsType[*engine.FieldError](policy.ValidateVolumeName(from)); ok {
		return VolumeView{}, &engine.FieldError{Field: "from", Value: bad.Value, Rule: bad.Rule}
	}
	if name == from {
		return VolumeView{}, &engine.FieldError{Field: "name", Value: spec.Quote(name), Rule: "must be another name than the name of the volume to copy"}
	}
	if err := m.enter(); err != nil {
		return VolumeView{}, err
	}
	defer m.wg.Done()
	created, err := m.snapshot(ctx, c, volumeRecord{Tenant: tenant, Name: name, From: from, Bytes: l.Bytes, Inodes: l.Inodes})
	if err != nil {
		return VolumeView{}, err
	}
	v, err := m.Volume(ctx, tenant, name)
	v.Created = created
	return v, err
}

func (m *Manager) snapshot(ctx context.Context, c Caller, r volumeRecord) (created bool, err error) {
	unlock, err := m.named.changing.LockContext(ctx, r.id())
	if err != nil {
		return false, err
	}
	defer unlock()
	if has, ok := m.named.record(r.id()); ok {
		switch {
		case has.Removing:
			return false, fmt.Errorf("volume %q is being removed: %w", r.Name, ErrState)
		case has.From != r.From:
			return false, fmt.Errorf("volume %q exists and was not made from %q: remove it first, or take another name: %w", r.Name, r.From, ErrVolumeExists)
		case r.Bytes != 0 && r.Bytes != has.Bytes || r.Inodes != 0 && r.Inodes != has.Inodes:
			return false, fmt.Errorf("volume %q has %s, not %s: resize it, or remove it first: %w", r.Name, has.Bytes, r.Bytes, ErrVolumeExists)
		}
		return false, m.named.checkThere([]engine.Mount{{Volume: r.id()}})
	}
	if m.volumes.isKept(r.id()) {
		return false, fmt.Errorf("volume %q was kept when the database of boxd was lost: create it to get its content back, or take another name: %w", r.Name, ErrVolumeExists)
	}
	next, err := m.named.copying.LockContext(ctx, r.Tenant)
	if err != nil {
		return false, err
	}
	defer next()
	source, done, err := m.named.beginCopy(r)
	if err != nil {
		return false, err
	}
	defer done()
	r.Bytes, r.Inodes = cmp.Or(r.Bytes, source.Bytes), cmp.Or(r.Inodes, source.Inodes)
	if err := r.validate(); err != nil {
		return false, err
	}
	if r.Bytes < source.Bytes {
		return false, &engine.FieldError{Field: "size", Value: r.Bytes.String(), Rule: fmt.Sprintf("must be at least %s, the size of volume %q", source.Bytes, r.From)}
	}
	return true, m.addVolume(ctx, c, r)
}

// beginCopy keeps the volume from which r is made from being written to, resized and removed
// until done is called, and returns its record.
func (n *namedVolumes) beginCopy(r volumeRecord) (source volumeRecord, done func(), err error) {
	id := policy.VolumeID(r.Tenant, r.From)
	n.mu.Lock()
	defer n.mu.Unlock()
	v := n.all[id]
	switch {
	case v == nil:
		return source, nil, fmt.Errorf("volume %q: %w", r.From, ErrNotFound)
	case v.lost:
		return source, nil, v.record.lostError()
	case v.record.Removing:
		return source, nil, fmt.Errorf("volume %q is being removed: %w", r.From, ErrState)
	case v.record.Creating:
		return source, nil, fmt.Errorf("volume %q is being created: %w", r.From, ErrState)
	}
	for key, writes := range n.sessionsLocked(id) {
		if writes {
			return source, nil, fmt.Errorf("volume %q: session %q has it read-write: it can be copied while sessions have it read-only, or none has it: %w", r.From, key.ID, ErrVolumeInUse)
		}
	}
	v.copies++
	return v.record, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		v.copies--
	}, nil
}

// namesFrom returns err, an error of the engine, in the terms of a client that asked for a copy.
func (m *Manager) namesFrom(r volumeRecord, err error) error {
	bad, ok := errors.AsType[*engine.FieldError](err)
	if r.From == "" || !ok {
		return err
	}
	rule := strings.ReplaceAll(bad.Rule, policy.VolumeID(r.Tenant, r.From), r.From)
	return &engine.FieldError{Field: "from", Value: spec.Quote(r.From), Rule: fmt.Sprintf("cannot be copied: it %s", strings.ReplaceAll(rule, r.id(), r.Name))}
}
