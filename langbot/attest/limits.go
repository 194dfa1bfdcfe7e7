package attest

import (
	"fmt"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
)

// ephemeral are the directories of a box that go with it, and their sizes.
var ephemeral = []struct {
	dir  string
	size int64
}{{"/tmp", tmpSize}, {engine.HomeTarget, tmpSize}, {"/dev/shm", tmpSize}, {"/", upperSize}}

// ephemeral fills everything that a box can write and that nobody else keeps.
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

// unbounded says what is wrong with a directory that was filled.
func unbounded(f facts, dir string, size int64) string {
	got := f.numbers("fill", dir) // exit status, bytes
	switch {
	case len(got) != 2:
		return fmt.Sprintf("%s of a box could not be written", dir)
	case got[1] == 0:
		return fmt.Sprintf("%s of a box had no room at all, so nothing can be said", dir)
	case got[1] > size || got[0] == 0:
		return fmt.Sprintf("%s of a box took %s, its size is %s", dir, spec.FormatSize(got[1]), spec.FormatSize(size))
	case !f.has("full", dir):
		return fmt.Sprintf("%s of a box failed for another reason than being full", dir)
	}
	return ""
}

// inodes makes more files than there can be in the workspace and among the skills.
func (e *experiment) inodes() error {
	var args []any
	if e.quotas.workspace == nil {
		args = append(args, engine.WorkspaceTarget)
	}
	if e.quotas.skills == nil {
		args = append(args, skillsTarget)
	}
	if e.quotas.workspace != nil {
		e.fail(InodeQuota, "workspace: %v", e.quotas.workspace)
		return nil
	}
	if e.quotas.skills != nil {
		e.fail(InodeQuota, "skills: %v", e.quotas.skills)
		return nil
	}
	f, err := e.script(scriptInodes, append([]any{2 * volumeInodes}, args...)...)
	if err != nil {
		return e.failed(err, InodeQuota)
	}
	for _, dir := range args {
		made := f.numbers("inodes", dir.(string))
		switch {
		case len(made) != 1 || made[0] == 0:
			e.fail(InodeQuota, "no file could be made in %s of a box, so nothing can be said", dir)
			return nil
		case made[0] >= 2*volumeInodes || !f.has("full", dir.(string)): // file systems round up
			e.fail(InodeQuota, "%d files could be made in %s of a box, which may have %d", made[0], dir, volumeInodes)
			return nil
		}
	}
	e.pass(InodeQuota)
	return nil
}

// storage fills the workspace and the skills, one after the other, and sees that the
// other is unharmed.
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
			if !f.has("other", other.(string)) {
				e.fail(s.check, "while %s of a box was full, %s could not be written either", s.dir, other)
			}
		}
	}
	return e.account()
}

// account compares with what the engine says is used.
func (e *experiment) account() error {
	over, err := e.quotas.overfull(e.ctx)
	if err != nil {
		return e.failed(err, HardWorkspaceQuota, HardSkillStorageQuota)
	}
	for check, volume := range map[string]string{HardWorkspaceQuota: workspaceVolume, HardSkillStorageQuota: skillsVolume} {
		if why := over[volume]; why != "" && e.checks[check].OK {
			e.fail(check, "%s", why)
		}
	}
	return nil
}
