package attest

import (
	"fmt"
	"slices"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
)

// ephemeral are the directories of a box that do not outlive it, and their sizes.
var ephemeral = []struct {
	dir  string
	size int64
}{{"/tmp", tmpSize}, {engine.HomeTarget, tmpSize}, {"/dev/shm", tmpSize}, {"/", upperSize}}

// ephemeral fills all directories that a box can write and that do not outlive it.
func (e *experiment) ephemeral() error {
	args := []any{2 * tmpSize / block}
	for _, d := range ephemeral {
		args = append(args, d.dir)
	}
	f, err := e.script(scriptFill, args...)
	if err != nil {
		return e.failed(err, BoundedEphemeralStorage)
	}
	for _, d := range ephemeral {
		if d.dir == "/" && e.readOnly {
			if got := f.numbers("fill", "/"); len(got) == 2 && got[1] > 0 {
				e.fail(BoundedEphemeralStorage, "the read-only root of a box took %s", spec.FormatSize(got[1]))
				return nil
			}
			continue
		}
		if why := unbounded(f, d.dir, d.size); why != "" {
			e.fail(BoundedEphemeralStorage, "%s", why)
			return nil
		}
	}
	e.pass(BoundedEphemeralStorage)
	return nil
}

// unbounded says why filling a directory did not prove a limit, "" if it did.
func unbounded(f facts, dir string, size int64) string {
	got := f.numbers("fill", dir) // exit status, bytes
	switch {
	case len(got) != 2:
		return fmt.Sprintf("%s of a box could not be written", dir)
	case got[1] == 0:
		return fmt.Sprintf("%s of a box had no room at all, so this proves nothing", dir)
	case got[1] > size || got[0] == 0:
		return fmt.Sprintf("%s of a box took %s, its size is %s", dir, spec.FormatSize(got[1]), spec.FormatSize(size))
	case !slices.Contains(f["full"], dir):
		return fmt.Sprintf("%s of a box failed for another reason than being full", dir)
	}
	return ""
}

// inodes creates more files than the workspace and the skills may have.
func (e *experiment) inodes() error {
	switch {
	case e.quotas.workspace != nil:
		e.fail(InodeQuota, "workspace: %v", e.quotas.workspace)
		return nil
	case e.quotas.skills != nil:
		e.fail(InodeQuota, "skills: %v", e.quotas.skills)
		return nil
	}
	f, err := e.script(scriptInodes, 2*volumeInodes, engine.WorkspaceTarget, skillsTarget)
	if err != nil {
		return e.failed(err, InodeQuota)
	}
	for _, dir := range []string{engine.WorkspaceTarget, skillsTarget} {
		made := f.numbers("inodes", dir)
		switch {
		case len(made) != 1 || made[0] == 0:
			e.fail(InodeQuota, "no file could be made in %s of a box, so this proves nothing", dir)
			return nil
		case made[0] >= 2*volumeInodes || !slices.Contains(f["full"], dir): // file systems round the limit up
			e.fail(InodeQuota, "%d files could be made in %s of a box, which may have %d", made[0], dir, volumeInodes)
			return nil
		}
	}
	e.pass(InodeQuota)
	return nil
}

// storage fills the workspace and the skills, one after the other, and checks that the other can
// still be written. At the end it compares the results with what the engine accounts for.
func (e *experiment) storage() error {
	for _, s := range []struct {
		check, dir, other, volume string
		why, otherWhy             error
	}{
		{HardWorkspaceQuota, engine.WorkspaceTarget, skillsTarget, workspaceVolume, e.quotas.workspace, e.quotas.skills},
		{HardSkillStorageQuota, skillsTarget, engine.WorkspaceTarget, skillsVolume, e.quotas.skills, e.quotas.workspace},
	} {
		if s.why != nil {
			e.fail(s.check, "%v", s.why)
			continue
		}
		others := []any{"/tmp"}
		if s.otherWhy == nil {
			others = append(others, s.other)
		}
		f, err := e.script(scriptQuota, append([]any{2 * volumeSize / block, s.dir}, others...)...)
		if err != nil {
			return e.failed(err, HardWorkspaceQuota, HardSkillStorageQuota)
		}
		if why := unbounded(f, s.dir, volumeSize); why != "" {
			e.fail(s.check, "%s", why)
			continue
		}
		e.pass(s.check)
		for _, other := range others {
			if !slices.Contains(f["other"], other.(string)) {
				e.fail(s.check, "while %s of a box was full, %s could not be written either", s.dir, other)
			}
		}
	}
	if e.quotas.storage == nil {
		return nil
	}
	volumes, err := e.quotas.storage.Volumes(e.ctx)
	if err != nil {
		return e.failed(err, HardWorkspaceQuota, HardSkillStorageQuota)
	}
	checks := map[string]string{workspaceVolume: HardWorkspaceQuota, skillsVolume: HardSkillStorageQuota}
	for _, v := range volumes {
		if check := checks[v.Name]; v.UsedBytes > volumeSize && e.checks[check].OK {
			e.fail(check, "it uses %s of %s", spec.FormatSize(v.UsedBytes), spec.FormatSize(volumeSize))
		}
	}
	return nil
}
