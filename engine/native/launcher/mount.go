package launcher

import (
	"errors"
	"fmt"

	"github.com/boxd/boxd/cgroups"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/mounts"
)

// attachMounts gives a new box the mounts of its spec, in the same way as a
// running one.
func (l *Launcher) attachMounts(b *box) error {
	for _, m := range mounts.InOrder(b.spec.Mounts) {
		if err := l.attach(b, m); err != nil {
			return err
		}
	}
	return nil
}

// attach adds one mount to a running box. What the box's user writes there
// belongs to the owner of the source.
func (l *Launcher) attach(b *box, m mounts.Mount) error {
	src, err := mounts.Open(m, l.deny)
	if err != nil {
		return fieldError(err)
	}
	defer src.Close()
	user := b.spec.User
	owner := mounts.OwnerMap(src.UID, src.GID, uint32(b.lease.Base+user.UID), uint32(b.lease.Base+user.GID))
	ns, err := b.mapping(owner)
	if err != nil {
		return err
	}
	tree, err := src.Tree(mounts.TreeOptions{ReadOnly: m.ReadOnly, Map: owner, UserNS: ns})
	if err != nil {
		return fieldError(err)
	}
	defer tree.Close()
	makePoint := func(target string, dir bool) error {
		return mounts.MakeMountPoint(b.root.Skeleton(), target, dir)
	}
	id, err := mounts.Attach(b.ns, tree, m.Target, makePoint)
	if err != nil {
		return fieldError(err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mounted[m.Target] = id
	return nil
}

func (l *Launcher) detach(b *box, target string) error {
	b.mu.Lock()
	id, ok := b.mounted[target]
	b.mu.Unlock()
	if !ok {
		return &engine.FieldError{Field: "detach", Value: fmt.Sprintf("%q", target), Rule: "is not a mount of this box"}
	}
	if err := mounts.Detach(b.ns, target, id); err != nil {
		return fieldError(err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.mounted, target)
	return nil
}

// update carries out a change: all of it, or, on failure, as little as possible:
// what was attached is taken away again.
func (l *Launcher) update(b *box, c engine.Change) error {
	if err := c.Validate(); err != nil {
		return err
	}
	for _, target := range c.Detach {
		if err := l.detach(b, target); err != nil {
			return err
		}
	}
	for i, m := range c.Attach {
		if err := l.attach(b, m); err != nil {
			for _, done := range c.Attach[:i] {
				err = errors.Join(err, l.detach(b, done.Target))
			}
			return err
		}
	}
	if c.Limits == nil {
		return nil
	}
	if err := b.group.Set(groupLimits(*c.Limits, b.spec.AllowDegraded)); err != nil {
		var cannot *cgroups.UnenforceableError
		if errors.As(err, &cannot) {
			err = fmt.Errorf("%w: %w", engine.ErrUnenforceable, err)
		}
		for _, done := range c.Attach {
			err = errors.Join(err, l.detach(b, done.Target))
		}
		return err
	}
	return nil
}

// fieldError makes a broken rule of package mounts one of the engine's.
func fieldError(err error) error {
	var m *mounts.Error
	if errors.As(err, &m) {
		return &engine.FieldError{Field: m.Field, Value: m.Value, Rule: m.Rule}
	}
	return err
}
