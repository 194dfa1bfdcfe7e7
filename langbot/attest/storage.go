package attest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"

	"github.com/boxd/boxd/engine"
)

// The sizes of the probe box's storage: large enough to work with, small enough to fill quickly.
const (
	tmpSize      = 1 << 20
	upperSize    = 1 << 20
	volumeSize   = 4 << 20
	volumeInodes = 64
	block        = 64 << 10 // the size of dd's writes
)

// The names are fixed, so that an aborted probe leaves at most one of each behind, which the next
// probe reuses.
const (
	workspaceVolume = "attest-workspace"
	skillsVolume    = "attest-skills"
	workspaceName   = ".boxd-attest-workspace"
	skillsName      = ".boxd-attest"

	skillsTarget = "/skills"
)

// quotas is the storage of the probe box.
type quotas struct {
	storage engine.Storage
	mounts  []engine.Mount
	// Why the box has no such storage; nil if it has.
	workspace, skills error

	made []engine.Directory // directories of the host to be removed
}

func (p *Prober) makeQuotas(ctx context.Context, where Places) *quotas {
	q := &quotas{storage: p.o.Storage}
	if q.storage == nil {
		q.workspace = errors.New("this engine keeps no storage of limited size")
		q.skills = q.workspace
		return q
	}
	q.workspace = q.add(ctx, workspaceVolume, where.Workspaces, workspaceName, engine.WorkspaceTarget)
	if p.o.SkillsUnlimited && where.Skills.Path != "" {
		q.skills = errors.New("no limit of skills is configured")
		return q
	}
	q.skills = q.add(ctx, skillsVolume, where.Skills, skillsName, skillsTarget)
	return q
}

// add creates a directory called name in dir, or a volume if dir is empty, limits it and has it
// mounted at target.
func (q *quotas) add(ctx context.Context, volume string, dir engine.Directory, name, target string) error {
	m := engine.Mount{Source: "/", Target: target, Volume: volume}
	if dir.Path == "" {
		if err := q.storage.RemoveVolume(ctx, volume); err != nil { // of an earlier probe
			return fmt.Errorf("removing volume %q: %w", volume, err)
		}
		if err := q.storage.MakeVolume(ctx, engine.Volume{Name: volume, Bytes: volumeSize, Inodes: volumeInodes}); err != nil {
			return err
		}
	} else {
		dir.Path = path.Join(dir.Path, name)
		m = engine.Mount{Source: dir.Path, Target: target, Within: dir.Within}
		made := dir
		made.Make = true
		f, err := q.storage.OpenDirectory(ctx, made)
		if err != nil {
			return err
		}
		f.Close()
		q.made = append(q.made, dir)
		if err := q.storage.LimitDirectory(ctx, dir, volumeSize, volumeInodes); err != nil {
			return err
		}
	}
	q.mounts = append(q.mounts, m)
	return nil
}

// remove removes what makeQuotas created. No box may still use it.
func (q *quotas) remove(ctx context.Context) error {
	if q.storage == nil {
		return nil
	}
	err := errors.Join(q.storage.RemoveVolume(ctx, workspaceVolume), q.storage.RemoveVolume(ctx, skillsVolume))
	for _, d := range q.made {
		if e := q.storage.LimitDirectory(ctx, d, 0, 0); !errors.Is(e, engine.ErrUnenforceable) { // if unenforceable, it has no limit
			err = errors.Join(err, e)
		}
		err = errors.Join(err, q.removeHost(ctx, d))
	}
	return err
}

func (q *quotas) removeHost(ctx context.Context, d engine.Directory) error {
	name := path.Base(d.Path)
	d.Path = path.Dir(d.Path)
	dir, err := q.storage.OpenDirectory(ctx, d)
	if err != nil {
		return err
	}
	defer dir.Close()
	root, err := os.OpenRoot("/proc/self/fd/" + strconv.Itoa(int(dir.Fd())))
	if err != nil {
		return err
	}
	defer root.Close()
	if err := root.RemoveAll(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
