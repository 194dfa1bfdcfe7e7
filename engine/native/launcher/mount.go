package launcher

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/boxd/boxd/cgroups"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native/rpc"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/cleanup"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/oneline"
	"github.com/boxd/boxd/internal/pathin"
	"github.com/boxd/boxd/mounts"
)

// attachMounts gives a new box the mounts of its spec, in the same way as a
// running one.
func (l *Launcher) attachMounts(b *box) error {
	for _, m := range spec.InOrder(b.spec.Mounts) {
		done := b.work.begin("attaching a mount", "at "+spec.Quote(m.Target), nil)
		err := l.attach(b, m)
		done()
		if err != nil {
			return err
		}
	}
	return nil
}

// attach adds one mount to a running box.
func (l *Launcher) attach(b *box, m engine.Mount) error {
	if err := b.reserveTarget(m); err != nil {
		return err
	}
	attached, err := l.attachHeld(b, m)
	b.mu.Lock()
	if err != nil {
		delete(b.mounted, m.Target)
	} else {
		b.mounted[m.Target] = attached
	}
	b.mu.Unlock()
	serr := b.save()
	if err == nil && serr != nil {
		// What is not on record the next launcher would not know of.
		return errors.Join(serr, l.detach(b, m.Target))
	}
	return errors.Join(err, serr)
}

// attachHeld keeps the volume that is mounted, if it is one, from being removed.
func (l *Launcher) attachHeld(b *box, m engine.Mount) (mounted, error) {
	if err := l.storage.hold(m.Volume, b.id); err != nil {
		return mounted{}, err
	}
	attached, err := l.attachRecorded(b, m)
	if err != nil {
		l.storage.drop(m.Volume, b.id)
	}
	return attached, err
}

// attachRecorded mounts what is reserved. It is on record before.
func (l *Launcher) attachRecorded(b *box, m engine.Mount) (mounted, error) {
	src, err := l.openSource(m)
	if err != nil {
		return mounted{}, err
	}
	defer src.Close()
	if b.record != nil {
		if err := b.noteUnder(m, src.limit); err != nil {
			return mounted{}, err
		}
	}
	id, err := b.mount(m, src.Source)
	return mounted{Mount: m, ID: id, Limit: src.limit}, err
}

// noteUnder puts on record that m is about to be attached, and on what.
func (b *box) noteUnder(m engine.Mount, limit int64) error {
	var under mounts.MountID
	err := b.withNS(func(ns mounts.NS) (err error) {
		under, err = mounts.MountAt(ns, m.Target)
		return err
	})
	if err != nil {
		return fieldError(err)
	}
	b.mu.Lock()
	b.mounted[m.Target] = mounted{Mount: m, ID: pending, Under: under, Limit: limit}
	b.mu.Unlock()
	return b.save()
}

// pending stands for a mount that is just being attached or detached. The kernel
// counts from 1.
const pending mounts.MountID = 0

// reserveTarget keeps a target for a mount. One mount at another's target, or
// above it, would hide it, and the hidden one could never be detached.
func (b *box) reserveTarget(m engine.Mount) error {
	target := m.Target
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.mounted) >= spec.MaxMounts {
		return &engine.FieldError{Field: "mounts", Value: fmt.Sprint(len(b.mounted) + 1), Rule: fmt.Sprintf("must be at most %d: detach some first", spec.MaxMounts)}
	}
	for other, has := range b.mounted {
		rule := ""
		switch {
		case other == target:
			rule = "has a mount of this box already: detach that first"
		case pathin.Below(other, target):
			rule = fmt.Sprintf("would hide the mount at %q: detach that first", other)
		case pathin.Below(target, other) && has.ID == pending:
			rule = fmt.Sprintf("is within %q, which another request is attaching or detaching: try again", other)
		}
		if rule != "" {
			return &engine.FieldError{Field: "target", Value: spec.Quote(target), Rule: rule}
		}
	}
	b.mounted[target] = mounted{Mount: m, ID: pending}
	return nil
}

// mount does the mounting. What the box's user writes there belongs to the owner
// of the source.
func (b *box) mount(m engine.Mount, src *mounts.Source) (mounts.MountID, error) {
	user := b.spec.User
	owner := mounts.OwnerMap(src.UID, src.GID, uint32(b.lease.Base+user.UID), uint32(b.lease.Base+user.GID))
	if m.Users && !isShared(src.UID) && !isShared(src.GID) {
		owner = mounts.UsersMap(mounts.Owner{UID: int(src.UID), GID: int(src.GID)}, mounts.Owner(user), uint32(b.lease.Base), sharedBase, idRange)
		if err := openToUsers(src); err != nil {
			return 0, err
		}
	}
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
	var id mounts.MountID
	err = b.withNS(func(ns mounts.NS) error {
		id, err = mounts.Attach(ns, tree, m.Target, func(target string, dir bool) error {
			return b.makePoint(ns, target, dir)
		})
		return err
	})
	return id, fieldError(err)
}

// openToUsers lets all users of a box into a directory that nobody of the box has opened
// or closed yet. Users of the host do not get to it: it lies in one that only its owner
// can enter.
func openToUsers(src *mounts.Source) error {
	st, err := linux.Fstat(src.File)
	if err != nil || !src.IsDir || st.Mode&0o777 != 0o700 {
		return err
	}
	return os.Chmod(linux.FdPath(src.File), 0o777)
}

func (l *Launcher) detach(b *box, target string) error {
	m, err := b.takeTarget(target)
	if err != nil {
		return err
	}
	err = b.unmount(target, m.ID)
	b.mu.Lock()
	if err != nil {
		b.mounted[target] = m
	} else {
		delete(b.mounted, target)
		l.storage.drop(m.Volume, b.id)
	}
	b.mu.Unlock()
	return errors.Join(fieldError(err), b.save())
}

// takeTarget reserves a target whose mount is to be detached. What is mounted
// within would go with it, unnoticed.
func (b *box) takeTarget(target string) (mounted, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m, ok := b.mounted[target]
	rule := ""
	switch {
	case !ok:
		rule = "is not a mount of this box"
	case m.ID == pending:
		rule = "is just being attached or detached by another request: try again"
	}
	for other := range b.mounted {
		if ok && pathin.Below(other, target) {
			rule = fmt.Sprintf("has the mount %q within it: detach that too", other)
		}
	}
	if rule != "" {
		return mounted{}, &engine.FieldError{Field: "detach", Value: spec.Quote(target), Rule: rule}
	}
	b.mounted[target] = mounted{Mount: m.Mount, ID: pending}
	return m, nil
}

// update carries out a change: all of it, or, on failure, as little as possible:
// what was attached is taken away again. Whatever order the change lists them in,
// outer mounts are attached before, and detached after, those within. What was detached
// stays so.
func (l *Launcher) update(b *box, c engine.Change, again bool) (detached []string, err error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if again {
		c = b.undone(c)
	}
	if len(c.Detach) > 0 { // what is attached can be undone, but not that
		if err := l.canOpen(c.Attach); err != nil {
			return nil, err
		}
	}
	for _, target := range innerFirst(c.Detach) {
		if err := l.detach(b, target); err != nil {
			return detached, err
		}
		detached = append(detached, target)
	}
	var undo cleanup.Stack
	defer undo.Undo(&err)
	for _, m := range spec.InOrder(c.Attach) {
		if err := l.attach(b, m); err != nil {
			return detached, err
		}
		undo.Push(func() error { return l.detach(b, m.Target) })
	}
	if c.Limits != nil {
		if err := b.limit(*c.Limits); err != nil {
			return detached, err
		}
		if err := l.show(b); err != nil {
			// The limits are in force all the same.
			fmt.Fprintf(os.Stderr, "boxd-init: box %q: %v\n", b.id, oneline.Error(err))
		}
	}
	undo.Release()
	return detached, nil
}

// canOpen is the error of the first source that would be refused.
func (l *Launcher) canOpen(list []engine.Mount) error {
	for _, m := range list {
		src, err := l.openSource(m)
		if err != nil {
			return err
		}
		src.Close()
	}
	return nil
}

// undone is what of a change has not been carried out.
func (b *box) undone(c engine.Change) engine.Change {
	b.mu.Lock()
	defer b.mu.Unlock()
	replaced := map[string]bool{} // attached already: not to be detached before that
	c.Attach = slices.DeleteFunc(slices.Clone(c.Attach), func(m engine.Mount) bool {
		has, ok := b.mounted[m.Target]
		replaced[m.Target] = ok && has.ID != pending && has.Mount == m
		return replaced[m.Target]
	})
	c.Detach = slices.DeleteFunc(slices.Clone(c.Detach), func(target string) bool {
		_, ok := b.mounted[target]
		return !ok || replaced[target]
	})
	return c
}

// innerFirst sorts targets by their depth, the deepest first.
func innerFirst(targets []string) []string {
	return slices.SortedStableFunc(slices.Values(targets), func(a, b string) int {
		return strings.Count(b, "/") - strings.Count(a, "/")
	})
}

func (b *box) limit(l engine.Limits) error {
	b.limiting.Lock()
	defer b.limiting.Unlock()
	err := b.group.Set(groupLimits(l, b.spec.AllowDegraded))
	var cannot *cgroups.UnenforceableError
	if errors.As(err, &cannot) {
		return fmt.Errorf("%w: %w", engine.ErrUnenforceable, err)
	}
	if err != nil {
		return err
	}
	b.mu.Lock()
	if b.record != nil {
		b.record.Limits = b.record.Limits.Apply(l)
	}
	b.mu.Unlock()
	return b.save()
}

// fieldError is err without what is wrapped around a broken rule of package mounts.
func fieldError(err error) error {
	field, ok := errors.AsType[*engine.FieldError](err)
	switch {
	case !ok:
		return err
	case field.Field == spec.MountSource && errors.Is(err, fs.ErrNotExist):
		return missingError{field}
	}
	return field
}

// missingError is a source that does not exist.
type missingError struct{ *engine.FieldError }

func (e missingError) Unwrap() []error { return []error{e.FieldError, rpc.ErrMissing} }
