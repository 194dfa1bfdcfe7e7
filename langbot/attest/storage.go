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
	"github.com/boxd/boxd/engine/spec"
)

// What the probe box has of everything: enough to work, little enough to be full at
// once.
const (
	tmpSize      = 1 << 20
	upperSize    = 1 << 20
	volumeSize   = 4 << 20
	volumeInodes = 64
	block        = 64 << 10 // that dd writes at once
)

// The names are always the same, so that a probe that was cut off leaves one of each at
// most, for the next one to use.
const (
	workspaceVolume = "attest-workspace"
	skillsVolume    = "attest-skills"
	workspaceName   = ".boxd-attest-workspace"
	skillsName      = ".boxd-attest"

	skillsTarget = "/skills"
)

// quotas is the storage that is given to the probe box.
type quotas struct {
	storage engine.Storage
	mounts  []engine.Mount
	// Why there is no such storage; nil if there is.
	workspace, skills error

	made []engine.Directory // of the host, to be removed
}

// errNoStorage is the reason where nothing limits directories.
var errNoStorage = errors.New("this engine keeps no storage of limited size")

// errUnlimited is the reason where the operator wants no limit.
var errUnlimited = errors.New("no limit of skills is configured")

func (p *Prober) makeQuotas(ctx context.Context, where Places) *quotas {
	q := &quotas{storage: p.o.Storage}
	if q.storage == nil {
		q.workspace, q.skills = errNoStorage, errNoStorage
		return q
	}
	q.workspace = q.add(ctx, workspaceVolume, where.Workspaces, workspaceName, engine.WorkspaceTarget)
	if p.o.SkillsUnlimited && where.Skills.Path != "" {
		q.skills = errUnlimited
		return q
	}
	q.skills = q.add(ctx, skillsVolume, where.Skills, skillsName, skillsTarget)
	return q
}

// add makes the directory name in dir, or a volume if that is none, and has it mounted at
// target.
func (q *quotas) add(ctx context.Context, volume string, dir engine.Directory, name, target string) error {
	m := engine.Mount{Source: "/", Target: target, Volume: volume}
	var err error
	if dir.Path == "" {
		err = q.volume(ctx, volume)
	} else {
		dir.Path = path.Join(dir.Path, name)
		m = engine.Mount{Source: dir.Path, Target: target, Within: dir.Within}
		err = q.host(ctx, dir)
	}
	if err == nil {
		q.mounts = append(q.mounts, m)
	}
	return err
}

func (q *quotas) volume(ctx context.Context, name string) error {
	if err := q.storage.RemoveVolume(ctx, name); err != nil { // an earlier probe's
		return fmt.Errorf("removing volume %q: %w", name, err)
	}
	return q.storage.MakeVolume(ctx, engine.Volume{Name: name, Bytes: volumeSize, Inodes: volumeInodes})
}

// host makes a directory of the host with a limit.
func (q *quotas) host(ctx context.Context, d engine.Directory) error {
	made := d
	made.Make = true
	dir, err := q.storage.OpenDirectory(ctx, made)
	if err != nil {
		return err
	}
	dir.Close()
	q.made = append(q.made, d)
	return q.storage.LimitDirectory(ctx, d, volumeSize, volumeInodes)
}

// remove removes what makeQuotas made. No box may have it any more.
func (q *quotas) remove(ctx context.Context) error {
	if q.storage == nil {
		return nil
	}
	err := errors.Join(q.storage.RemoveVolume(ctx, workspaceVolume), q.storage.RemoveVolume(ctx, skillsVolume))
	for _, d := range q.made {
		if e := q.storage.LimitDirectory(ctx, d, 0, 0); !errors.Is(e, engine.ErrUnenforceable) { // then it has none
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

// overfull says which volume uses more than it may, by the engine's own account.
func (q *quotas) overfull(ctx context.Context) (map[string]string, error) {
	if q.storage == nil {
		return nil, nil
	}
	states, err := q.storage.Volumes(ctx)
	if err != nil {
		return nil, err
	}
	over := make(map[string]string)
	for _, s := range states {
		if (s.Name == workspaceVolume || s.Name == skillsVolume) && s.UsedBytes > volumeSize {
			over[s.Name] = fmt.Sprintf("it uses %s of %s", spec.FormatSize(s.UsedBytes), spec.FormatSize(volumeSize))
		}
	}
	return over, nil
}
