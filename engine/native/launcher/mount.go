package launcher

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/boxd/boxd/cgroups"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/cleanup"
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

// attach adds one mount to a running box.
func (l *Launcher) attach(b *box, m mounts.Mount) error {
	if err := b.reserveTarget(m.Target); err != nil {
		return err
	}
	id, err := l.mount(b, m)
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil {
		delete(b.mounted, m.Target)
		return err
	}
	b.mounted[m.Target] = id
	return nil
}

// pending stands for a mount that is just being attached or detached. The kernel
// counts from 1.
const pending mounts.MountID = 0

// reserveTarget keeps a target for a mount. One mount at another's target, or
// above it, would hide it, and the hidden one could never be detached.
func (b *box) reserveTarget(target string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for other, id := range b.mounted {
		rule := ""
		switch {
		case other == target:
			rule = "has a mount of this box already: detach that first"
		case isWithin(other, target):
			rule = fmt.Sprintf("would hide the mount at %q: detach that first", other)
		case isWithin(target, other) && id == pending:
			rule = fmt.Sprintf("is within %q, which another request is attaching or detaching: try again", other)
		}
		if rule != "" {
			return &engine.FieldError{Field: "target", Value: engine.Quote(target), Rule: rule}
		}
	}
	b.mounted[target] = pending
	return nil
}

// isWithin says whether p is a path below dir.
func isWithin(p, dir string) bool { return strings.HasPrefix(p, dir+"/") }

// mount does the mounting. What the box's user writes there belongs to the owner
// of the source.
func (l *Launcher) mount(b *box, m mounts.Mount) (mounts.MountID, error) {
	src, err := mounts.Open(m, l.deny)
	if err != nil {
		return 0, fieldError(err)
	}
	defer src.Close()
	user := b.spec.User
	owner := mounts.OwnerMap(src.UID, src.GID, uint32(b.lease.Base+user.UID), uint32(b.lease.Base+user.GID))
	ns, err := b.mapping(owner)
	if err != nil {
		return 0, err
	}
	defer ns.Close()
	tree, err := src.Tree(mounts.TreeOptions{ReadOnly: m.ReadOnly, Map: owner, UserNS: ns})
	if err != nil {
		return 0, fieldError(err)
	}
	defer tree.Close()
	makePoint := func(target string, dir bool) error {
		return mounts.MakeMountPoint(b.root.Skeleton(), target, dir)
	}
	id, err := mounts.Attach(b.ns, tree, m.Target, makePoint)
	return id, fieldError(err)
}

func (l *Launcher) detach(b *box, target string) error {
	id, err := b.takeTarget(target)
	if err != nil {
		return err
	}
	err = mounts.Detach(b.ns, target, id)
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil {
		b.mounted[target] = id
		return fieldError(err)
	}
	delete(b.mounted, target)
	return nil
}

// takeTarget reserves a target whose mount is to be detached. What is mounted
// within would go with it, unnoticed.
func (b *box) takeTarget(target string) (mounts.MountID, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	id, ok := b.mounted[target]
	rule := ""
	switch {
	case !ok:
		rule = "is not a mount of this box"
	case id == pending:
		rule = "is just being attached or detached by another request: try again"
	}
	for other := range b.mounted {
		if ok && isWithin(other, target) {
			rule = fmt.Sprintf("has the mount %q within it: detach that too", other)
		}
	}
	if rule != "" {
		return 0, &engine.FieldError{Field: "detach", Value: engine.Quote(target), Rule: rule}
	}
	b.mounted[target] = pending
	return id, nil
}

// update carries out a change: all of it, or, on failure, as little as possible:
// what was attached is taken away again. Whatever order the change lists them in,
// outer mounts are attached before, and detached after, those within.
func (l *Launcher) update(b *box, c engine.Change) (err error) {
	if err := c.Validate(); err != nil {
		return err
	}
	for _, target := range innerFirst(c.Detach) {
		if err := l.detach(b, target); err != nil {
			return err
		}
	}
	var undo cleanup.Stack
	defer undo.Undo(&err)
	for _, m := range mounts.InOrder(c.Attach) {
		if err := l.attach(b, m); err != nil {
			return err
		}
		undo.Push(func() error { return l.detach(b, m.Target) })
	}
	if c.Limits != nil {
		if err := b.limit(*c.Limits); err != nil {
			return err
		}
	}
	undo.Release()
	return nil
}

// innerFirst sorts targets by their depth, the deepest first.
func innerFirst(targets []string) []string {
	return slices.SortedStableFunc(slices.Values(targets), func(a, b string) int {
		return strings.Count(b, "/") - strings.Count(a, "/")
	})
}

func (b *box) limit(l engine.Limits) error {
	err := b.group.Set(groupLimits(l, b.spec.AllowDegraded))
	var cannot *cgroups.UnenforceableError
	if errors.As(err, &cannot) {
		return fmt.Errorf("%w: %w", engine.ErrUnenforceable, err)
	}
	return err
}

// fieldError makes a broken rule of package mounts one of the engine's.
func fieldError(err error) error {
	var m *mounts.Error
	if errors.As(err, &m) {
		return &engine.FieldError{Field: m.Field, Value: m.Value, Rule: m.Rule}
	}
	return err
}
