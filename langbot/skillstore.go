package langbot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/oneline"
	"github.com/boxd/boxd/internal/pathin"
	"github.com/boxd/boxd/langbot/door"
	"github.com/boxd/boxd/langbot/protocol"
	"github.com/boxd/boxd/langbot/skills"
	"github.com/boxd/boxd/langbot/transfer"
)

// skillsPrefix is the directory of skills as clients see it while volumes keep them. It is not a
// path of the host.
const skillsPrefix = "/boxd/skills"

// skillsDir is the directory of the host that keeps skills: the operator's, or else the one that
// an instance named in box_init. If it is empty, volumes keep them.
func (s *Server) skillsDir(l local) string { return cmp.Or(s.o.SkillsDir, l.skills) }

func (k *call) skillsDir() string { return k.s.skillsDir(k.settings().local) }

// skillsRoot is the directory of all skills, as clients see it.
func (k *call) skillsRoot() string { return cmp.Or(k.skillsDir(), skillsPrefix) }

// ownSkills is the directory of the workspace's skills, as clients see it.
func (k *call) ownSkills() string {
	return path.Join(k.skillsRoot(), "tenants", k.at.Namespace())
}

// skillsVolume names the volume for the skills of a namespace.
func skillsVolume(ns string) string { return "skills-" + ns }

// skillPath reports whether a client's path names one of its skills, and returns it relative to
// their directory. Another workspace's skills are refused, whether they exist or not.
func (k *call) skillPath(field, name string) (skill bool, rest string, err error) {
	clean := path.Clean(name)
	if !pathin.In(clean, k.skillsRoot()) {
		return false, "", nil
	}
	own := k.ownSkills()
	rest = strings.TrimPrefix(clean, own)
	if !pathin.Below(clean, own) || skills.IsPrivate(strings.TrimPrefix(rest, "/")) {
		return false, "", protocol.Errorf(protocol.BoxValidation, "%s %q: must be one of the workspace's own skills, in %q", field, name, own)
	}
	return true, rest, nil
}

// skillStore is where the workspace's skills are.
func (k *call) skillStore() skills.Root {
	root := skills.Root{Namespace: k.at.Namespace(), Path: k.ownSkills()}
	dir := k.skillsDir()
	root.Open = func(ctx context.Context, make bool) (*os.File, error) {
		storage := k.s.storage()
		switch {
		case storage == nil:
			return nil, protocol.Errorf(protocol.BoxError, "the skill store is not available: this engine keeps no directories")
		case dir == "":
			return k.s.openSkillVolume(ctx, storage, skillsVolume(root.Namespace), make)
		}
		return k.s.openSkillsIn(ctx, storage, engine.Directory{Path: root.Path, Within: rootOf(dir, k.s.o.Roots)})
	}
	return root
}

// openSkillsIn opens the directory of the host with the skills of a workspace. Like the reference
// server, it creates a missing one even for reading. It limits the directory's size once, where
// the file system can do that.
func (s *Server) openSkillsIn(ctx context.Context, storage engine.Storage, dir engine.Directory) (*os.File, error) {
	f, made, err := openOrMake(ctx, storage, dir)
	if err != nil {
		return nil, err
	}
	if made {
		s.skillsMade.Delete(dir.Path) // an older directory of this name had a limit, this one has none
	}
	if _, limited := s.skillsMade.Load(dir.Path); limited || s.o.SkillsSize == 0 {
		return f, nil
	}
	limits := engine.Volume{Bytes: s.o.SkillsSize, Inodes: s.o.SkillsInodes}.WithDefaults()
	err = storage.LimitDirectory(ctx, dir, limits.Bytes, limits.Inodes)
	if errors.Is(err, engine.ErrUnenforceable) {
		s.softSkills.Do(func() {
			s.log.Warn("skills are on a file system that cannot limit their size", "directory", dir.Path, "error", err)
		})
		err = nil
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	s.skillsMade.Store(dir.Path, true)
	return f, nil
}

// openOrMake opens a directory of the host, and creates a missing one. The path to an existing
// directory may contain symlinks, the path to a new one may not.
func openOrMake(ctx context.Context, storage engine.Storage, dir engine.Directory) (f *os.File, made bool, err error) {
	f, err = storage.OpenDirectory(ctx, dir)
	if errors.Is(err, fs.ErrNotExist) {
		dir.Make = true
		f, err = storage.OpenDirectory(ctx, dir)
		return f, err == nil, err
	}
	return f, false, err
}

// openSkillVolume opens the volume with the skills of a workspace. With make, it creates a missing
// one. Once, it gives the volume the configured size.
func (s *Server) openSkillVolume(ctx context.Context, storage engine.Storage, name string, make bool) (*os.File, error) {
	if _, known := s.skillsMade.Load(name); !known {
		list, err := storage.Volumes(ctx)
		if err != nil {
			return nil, err
		}
		want := engine.Volume{Name: name, Bytes: s.o.SkillsSize, Inodes: s.o.SkillsInodes}
		i := slices.IndexFunc(list, func(v engine.VolumeState) bool { return v.Name == name })
		if i < 0 && !make {
			return nil, fmt.Errorf("skills: %w", fs.ErrNotExist)
		}
		if i < 0 || list[i].Bytes <= want.Bytes { // a larger one may be an image, which cannot shrink
			if err := storage.MakeVolume(ctx, want); err != nil {
				return nil, err
			}
		}
		s.skillsMade.Store(name, true)
	}
	f, err := storage.OpenDirectory(ctx, engine.Directory{Volume: name, Path: "/"})
	if err != nil {
		s.skillsMade.Delete(name) // the volume may have been removed
	}
	return f, err
}

// checkSkills creates the directory of skills that an instance names in box_init, if it is
// missing. If it must not be written, the skills stay in volumes, and the log says so. If the
// engine does not say whether it may, box_init fails.
func (k *call) checkSkills(ctx context.Context, l *local) error {
	s := k.s
	if l.skills == "" && l.noSkills == "" || s.o.SkillsDir != "" {
		return nil
	}
	if l.noSkills == "" {
		err := fs.ErrNotExist
		var f *os.File
		if storage := s.storage(); storage != nil {
			f, _, err = openOrMake(ctx, storage, engine.Directory{Path: l.skills, Within: rootOf(l.skills, s.o.Roots)})
		}
		switch {
		case err == nil:
			return f.Close()
		case !errors.Is(err, engine.ErrInvalid) && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission):
			return fmt.Errorf("box.local.skills_root %q: %w", l.skills, err)
		}
		l.skills, l.noSkills = "", oneline.Fold(err.Error())
	}
	s.log.Warn("the directory for skills that box_init names is not used: they are in volumes of boxd's own", "instance", k.at.Instance, "reason", l.noSkills)
	return nil
}

// skill carries out an action of the skill store.
func (k *call) skill(ctx context.Context) (any, error) {
	return k.s.skills.Do(ctx, k.skillStore(), k.action, k.data, transfers(k.conn))
}

// transfers holds the files that a connection is uploading.
func transfers(c *door.Conn) *transfer.Set {
	t, _ := c.Value.(*transfer.Set)
	return t
}

// fileChunk stores a part of an uploaded file.
func (k *call) fileChunk(context.Context) (any, error) {
	return nil, transfers(k.conn).Chunk(k.data)
}

// Opened prepares a connection. The limit of its uploads does not change later.
func (s *Server) Opened(c *door.Conn) {
	s.mu.Lock()
	most := s.settingsLocked(c.Instance()).limits.MaxRPCFileBytes
	s.mu.Unlock()
	c.Value = transfer.NewSet(s.o.Scratch, most, s.uploads)
}

// maxUploads bounds the uploads of all connections that no action has used yet, in bytes: they
// share the disk with the records of all sessions.
const maxUploads = 1 << 30

// Closed deletes the uploads of a connection that no action has used.
func (s *Server) Closed(c *door.Conn) {
	if t := transfers(c); t != nil {
		t.Close()
	}
}
