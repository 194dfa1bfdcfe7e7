package launcher

import (
	"cmp"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/oneline"
	"github.com/boxd/boxd/mounts"
)

// Mount roots limit what a client that is not root can reach of the host. Root names them:
// in RootsFile, with --mount-root, or by starting boxd serve with --allow-mount-root, which
// passes them on as --mount-root. They are read once, when the launcher starts. No request
// changes them.
//
// Each request opens its root again. A descriptor that the launcher kept open would keep the
// host from unmounting the file system, and would show the old directory after the operator
// has replaced it. It would not be safer either, because a client can restart its launcher
// (rpc.Stop). What matters is that the client cannot change where a root leads, and
// [mounts.OpenRoot] checks that each time.

// mountRoot is a directory of the host whose content a client may mount and open.
type mountRoot struct {
	path     string
	readOnly bool
	// noRootOwned leaves out what belongs to root's user or group.
	noRootOwned bool
	// own leaves out what does not belong to the client.
	own bool
}

// maxRoots bounds the number of mount roots from one origin.
const maxRoots = 1024

// parseRoot reads DIR[:ro][:no-root-owned]. A directory with a colon in its name cannot
// be a root.
func parseRoot(text string) (r mountRoot, err error) {
	refuse := func(rule string) (mountRoot, error) {
		return mountRoot{}, &engine.FieldError{Field: "mount root", Value: spec.Quote(text), Rule: rule}
	}
	dir, options, _ := strings.Cut(text, ":")
	if err := (engine.Mount{Source: dir, Target: "/root-of-mounts"}).Validate(); err != nil || dir != path.Clean(dir) {
		return refuse("must be an absolute, cleaned path, with an optional :ro and :no-root-owned")
	}
	r.path = dir
	if dir == text {
		return r, nil
	}
	for option := range strings.SplitSeq(options, ":") {
		switch {
		case option == "ro" && !r.readOnly:
			r.readOnly = true
		case option == "no-root-owned" && !r.noRootOwned:
			r.noRootOwned = true
		default:
			return refuse(fmt.Sprintf("option %q: must be ro or no-root-owned, each at most once; a directory with a colon in its name cannot be a root", option))
		}
	}
	return r, nil
}

// mountRoots are sorted by path.
type mountRoots []mountRoot

// newRoots combines roots of all origins. Restrictions add up: the same directory may be
// named twice, and a root has the restrictions of the roots that it lies in.
func newRoots(texts []string, workspaces string) (mountRoots, error) {
	var all mountRoots
	for _, text := range texts {
		r, err := parseRoot(text)
		if err != nil {
			return nil, err
		}
		if i := slices.IndexFunc(all, func(o mountRoot) bool { return o.path == r.path }); i >= 0 {
			all[i].readOnly = all[i].readOnly || r.readOnly
			all[i].noRootOwned = all[i].noRootOwned || r.noRootOwned
			continue
		}
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b mountRoot) int { return cmp.Compare(a.path, b.path) })
	for i := range all { // outer ones come first
		inner := &all[i]
		for _, outer := range all[:i] {
			if !mounts.Contains(outer.path, inner.path) {
				continue
			}
			if inner.readOnly && !outer.readOnly || inner.noRootOwned && !outer.noRootOwned {
				return nil, &engine.FieldError{Field: "mount root", Value: spec.Quote(inner.path),
					Rule: fmt.Sprintf("is more restricted than the root %q that it lies in, through which it can be reached all the same: restrict that, or name directories apart", outer.path)}
			}
			inner.readOnly = inner.readOnly || outer.readOnly
			inner.noRootOwned = inner.noRootOwned || outer.noRootOwned
		}
	}
	if workspaces != "" {
		all = append(all, mountRoot{path: workspaces, own: true})
	}
	return all, nil
}

// of returns the innermost root that contains source, compared as text.
func (all mountRoots) of(source string) (best mountRoot, ok bool) {
	for _, r := range all {
		if mounts.Contains(r.path, source) && (!ok || len(r.path) >= len(best.path)) {
			best, ok = r, true
		}
	}
	return best, ok
}

// report logs the roots that cannot be opened now. They are no reason not to start: a root
// may appear later, with its disk, and boxes need their launcher now.
func (all mountRoots) report(client mounts.Owner) {
	for _, r := range all {
		root, err := r.open(client)
		if err == nil {
			root.Close()
		} else if !r.own { // the client makes its own directory
			fmt.Fprintf(os.Stderr, "boxd-init: %v; it is looked for again with each request\n", oneline.Error(err))
		}
	}
}

func (r mountRoot) open(client mounts.Owner) (mounts.Root, error) {
	if r.own { // the client chose the path, and can mount only its own files there
		return mounts.OpenRoot(r.path, nil)
	}
	return mounts.OpenRoot(r.path, &client)
}

// hostSource opens the host's directory or file that m mounts. With mayMake it makes a
// missing directory. No request reaches a directory or file of the host in any other way.
func (l *Launcher) hostSource(m engine.Mount, mayMake bool) (*mounts.Source, error) {
	var root mounts.Root
	if l.service != nil && l.service.ClientUID != 0 {
		r, ok := l.service.roots.of(m.Source)
		if !ok {
			return nil, refuseSource(m, "is outside of the launcher's mount roots: root names them in "+RootsFile+" or with --mount-root")
		}
		if r.readOnly && !m.ReadOnly {
			return nil, refuseSource(m, fmt.Sprintf("is in the mount root %q, which is read-only: root named it so for the launcher", r.path))
		}
		if m.Users && !r.own {
			return nil, refuseSource(m, "is a directory of the host: files that other users of the box create there would belong to unknown ids")
		}
		mayMake = mayMake && !r.readOnly
		var err error
		if root, err = r.open(mounts.Owner{UID: l.service.ClientUID, GID: l.service.ClientGID}); err != nil {
			return nil, fieldError(err)
		}
		defer root.Close()
		root.Allow = func(uid, gid uint32) error { return r.allow(m, uid, gid, l.service.ClientUID) }
	}
	open := root.Open
	if mayMake {
		open = root.Make
	}
	src, err := open(m, l.deny)
	if err != nil {
		return nil, fieldError(err)
	}
	return src, nil
}

// allow checks the owner of the file or directory that m leads to.
func (r mountRoot) allow(m engine.Mount, uid, gid uint32, client int) error {
	switch {
	case r.noRootOwned && (uid == 0 || gid == 0):
		return refuseSource(m, fmt.Sprintf("belongs to root (user %d, group %d), or would be made in a directory that does: the launcher's mount root %q is no-root-owned; chown it to another user and group", uid, gid, r.path))
	case r.own && (int(uid) != client || gid == 0):
		return refuseSource(m, fmt.Sprintf("belongs to user %d and group %d: in %q, where workspaces are, only what belongs to the launcher's client, user %d, and not to group 0, is mounted", uid, gid, r.path, client))
	}
	return nil
}

// directoryTarget is the target of a mount that represents an [engine.Directory].
const directoryTarget = "/directory"

func refuseSource(m engine.Mount, rule string) error {
	if m.Target != directoryTarget {
		rule += fmt.Sprintf(" (mount at %s)", spec.Quote(m.Target))
	}
	return &engine.FieldError{Field: spec.MountSource, Value: spec.Quote(m.Source), Rule: rule}
}
