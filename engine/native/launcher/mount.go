package launcher

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native/rpc"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/cleanup"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/oneline"
	"github.com/boxd/boxd/internal/pathin"
	"github.com/boxd/boxd/mounts"
)

// attachMounts attaches the mounts of the spec to a new box, in the same way as later ones.
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
	attached, err := l.attachReserved(b, m)
	b.mu.Lock()
	if err != nil {
		delete(b.mounted, m.Target)
	} else {
		b.mounted[m.Target] = attached
	}
	b.mu.Unlock()
	serr := b.save()
	if err == nil && serr != nil {
		// The next launcher would not know a mount without a record.
		return errors.Join(serr, l.detach(b, m.Target))
	}
	return errors.Join(err, serr)
}

// attachReserved attaches m at its reserved target. It first keeps the volume, if m mounts
// one, from being removed, and records that m is about to be attached, and over which mount.
func (l *Launcher) attachReserved(b *box, m engine.Mount) (at mounted, err error) {
	if err := l.storage.hold(m.Volume, b.id); err != nil {
		return at, err
	}
	open := func() (*source, error) { return l.openSource(m, false) }
	if m.Layer != "" {
		open = func() (*source, error) { return l.layerSource(m, b.id) }
	}
	src, err := open()
	if err != nil {
		l.storage.drop(m.Volume, b.id)
		return at, err
	}
	defer src.Close()
	defer func() {
		if err != nil {
			l.storage.drop(m.Volume, b.id)
			l.layers.drop(m.Layer, b.id)
		}
	}()
	at = mounted{Mount: m, ID: pending, Limit: l.sizeLimit(m, src.Source)}
	if b.record != nil {
		err := b.withNS(func(ns mounts.NS) (err error) {
			at.Under, err = mounts.MountAt(ns, m.Target)
			return err
		})
		if err != nil {
			return at, fieldError(err)
		}
		b.mu.Lock()
		b.mounted[m.Target] = at
		b.mu.Unlock()
		if err := b.save(); err != nil {
			return at, err
		}
	}
	at.Under = 0
	at.ID, err = b.mount(m, src.Source)
	return at, err
}

// pending is the ID of a mount that is being attached or detached. The kernel's IDs begin
// at 1.
const pending mounts.MountID = 0

// reserveTarget reserves a target for a mount. A mount at or above the target of another
// would hide that one, which could then never be detached.
func (b *box) reserveTarget(m engine.Mount) error {
	target := m.Target
	b.mu.Lock()
	defer b.mu.Unlock()
	if limit := b.spec.MaxMounts(); len(b.mounted) >= limit {
		return &engine.FieldError{Field: "mounts", Value: fmt.Sprint(len(b.mounted) + 1), Rule: fmt.Sprintf("must be at most %d: detach some first", limit)}
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

// mount mounts src at the target of m. Files that the box's user makes there belong to the
// owner of src.
func (b *box) mount(m engine.Mount, src *mounts.Source) (mounts.MountID, error) {
	user := b.spec.User
	owner := mounts.OwnerMap(src.UID, src.GID, uint32(b.lease.Base+user.UID), uint32(b.lease.Base+user.GID))
	if m.Layer != "" {
		owner = layerMap(b.lease.Base)
	} else if m.Users && !isShared(src.UID) && !isShared(src.GID) {
		owner = usersMap(mounts.Owner{UID: int(src.UID), GID: int(src.GID)}, user, b.lease.Base)
		if err := openToUsers(src); err != nil {
			return 0, err
		}
	} else if isGVisor(b.spec) {
		owner = withMaker(owner, b.lease.Base)
	}
	ns, err := b.mapping(owner)
	if err != nil {
		return 0, err
	}
	defer ns.Close()
	tree, err := src.Tree(mounts.TreeOptions{ReadOnly: m.ReadOnly || spec.IsLayerID(m.Layer), Map: owner, UserNS: ns})
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

// usersMap is the map of a mount with Users, of a directory that belongs to owner, in a box with the IDs from base on.
func usersMap(owner mounts.Owner, user engine.User, base int) mounts.IDMap {
	return mounts.UsersMap(owner, mounts.Owner(user), uint32(base), sharedBase, idRange)
}

// openToUsers makes a directory of mode 0700 accessible to all users of a box. It leaves any
// other mode, which the box has set. Users of the host cannot reach the directory: only its
// owner can enter its parent.
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
		l.layers.drop(m.Layer, b.id)
	}
	b.mu.Unlock()
	return errors.Join(fieldError(err), b.save())
}

// unmount removes a mount, wherever the box has moved it: the box can rename directories in
// a mount that it may write, and the mounts in them move along.
func (b *box) unmount(target string, id mounts.MountID) error {
	err := b.withNS(func(ns mounts.NS) error { return mounts.Detach(ns, target, id) })
	if !errors.Is(err, mounts.ErrNotAttached) {
		return err
	}
	b.freezing.Lock()
	defer b.freezing.Unlock()
	ctx, cancel := context.WithTimeout(b.life, freezeTime)
	defer cancel()
	ferr := b.group.Freeze(ctx) // the search is worth trying in a box that does not freeze
	err = b.withNS(func(ns mounts.NS) error { return mounts.DetachMoved(ns, b.pid, id) })
	if err != nil {
		err = errors.Join(err, ferr)
	}
	return errors.Join(err, b.thawLocked())
}

// freezeTime bounds the wait until all processes of a box stand still.
const freezeTime = 2 * time.Second

// takeTarget reserves the target of a mount for its detachment. It refuses while other
// mounts lie within, which would disappear unnoticed.
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

// update carries out a change. After a failure it detaches again what it attached, but what
// it detached stays detached. Outer mounts are attached before inner ones and detached after
// them, in whatever order the change lists them.
func (l *Launcher) update(b *box, c engine.Change, again bool) (detached []string, err error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if b.spec.Unpacks && len(c.Attach) > 0 {
		return nil, &engine.FieldError{Field: "attach", Value: fmt.Sprint(len(c.Attach)), Rule: "must be empty: a box that unpacks gets all its mounts when it is created"}
	}
	if again {
		c = b.undone(c)
	}
	if len(c.Detach) > 0 { // which cannot be undone, so bad sources are refused before it
		for _, m := range c.Attach {
			src, err := l.openSource(m, false)
			if err != nil {
				return nil, err
			}
			src.Close()
		}
	}
	depth := func(target string) int { return strings.Count(target, "/") }
	for _, target := range slices.SortedStableFunc(slices.Values(c.Detach), func(a, b string) int { return depth(b) - depth(a) }) {
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
			// The new limits are in force nevertheless.
			fmt.Fprintf(os.Stderr, "boxd-init: box %q: %v\n", b.id, oneline.Error(err))
		}
	}
	undo.Release()
	return detached, nil
}

// undone returns the part of a change that has not been carried out yet.
func (b *box) undone(c engine.Change) engine.Change {
	b.mu.Lock()
	defer b.mu.Unlock()
	replaced := map[string]bool{} // attached already, so the target must not be detached first
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

func (b *box) limit(l engine.Limits) error {
	b.limiting.Lock()
	defer b.limiting.Unlock()
	if err := b.group.Set(limitsOf(b.spec, l)); err != nil {
		return limitError(err)
	}
	b.mu.Lock()
	if b.record != nil {
		b.record.Limits = b.record.Limits.Apply(l)
	}
	b.mu.Unlock()
	return b.save()
}

// fieldError strips from an error of package mounts everything around its FieldError, if it
// has one.
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

// missingError reports a source that does not exist.
type missingError struct{ *engine.FieldError }

func (e missingError) Unwrap() []error { return []error{e.FieldError, rpc.ErrMissing} }
