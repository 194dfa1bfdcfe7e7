package langbot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"sync"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/langbot/door"
	"github.com/boxd/boxd/langbot/protocol"
	"github.com/boxd/boxd/langbot/skills"
	"github.com/boxd/boxd/langbot/transfer"
)

// skillsPrefix is what clients take for the directory of skills that are in volumes. It is
// no path of the host.
const skillsPrefix = "/boxd/skills"

// skillsRoot is the directory of all skills, as clients see it.
func (s *Server) skillsRoot() string {
	if s.o.SkillsDir != "" {
		return s.o.SkillsDir
	}
	return skillsPrefix
}

// skillsOf is the directory of the skills of a namespace, as clients see it.
func (s *Server) skillsOf(ns string) string { return path.Join(s.skillsRoot(), "tenants", ns) }

// skillsVolume is the volume of the skills of a namespace.
func skillsVolume(ns string) string { return "skills-" + ns }

// skillPath says whether a path that a client names is one of its skills, and which one.
// Those of others are nobody's business, wherever they are.
func (k *call) skillPath(field, name string) (skill bool, rest string, err error) {
	clean := path.Clean(name)
	if !below(clean, k.s.skillsRoot()) {
		return false, "", nil
	}
	own := k.s.skillsOf(k.at.Namespace())
	rest = strings.TrimPrefix(clean, own)
	if clean == own || !below(clean, own) || skills.IsPrivate(strings.TrimPrefix(rest, "/")) {
		return false, "", protocol.Errorf(protocol.BoxValidation, "%s %q: must be one of the workspace's own skills, in %q", field, name, own)
	}
	return true, rest, nil
}

// openSkills opens the directory of a namespace's skills, whose size is limited when it
// is made.
func (s *Server) openSkills(ctx context.Context, ns string, make bool) (*os.File, error) {
	storage := s.storage()
	if storage == nil {
		return nil, protocol.Errorf(protocol.BoxError, "the skill store is not available: this engine keeps no directories")
	}
	if s.o.SkillsDir == "" {
		return s.openSkillVolume(ctx, storage, ns, make)
	}
	dir := engine.Directory{Path: s.skillsOf(ns), Within: rootOf(s.o.SkillsDir, s.o.Roots)}
	f, err := storage.OpenDirectory(ctx, dir)
	if make && errors.Is(err, fs.ErrNotExist) {
		s.skillsMade.Delete(ns) // a new one has no limit yet, whatever an older one had
		dir.Make = true
		f, err = storage.OpenDirectory(ctx, dir)
		dir.Make = false
	}
	if err != nil {
		return nil, err
	}
	if err := s.limitSkills(ctx, storage, ns, dir); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func (s *Server) openSkillVolume(ctx context.Context, storage engine.Storage, ns string, make bool) (*os.File, error) {
	name := skillsVolume(ns)
	if _, known := s.skillsMade.Load(ns); !known {
		if err := s.findSkillVolume(ctx, storage, name, make); err != nil {
			return nil, err
		}
		s.skillsMade.Store(ns, true)
	}
	f, err := storage.OpenDirectory(ctx, engine.Directory{Volume: name, Path: "/"})
	if err != nil {
		s.skillsMade.Delete(ns) // it may have been taken away
	}
	return f, err
}

// findSkillVolume makes sure that there is the volume, and that it has today's size.
func (s *Server) findSkillVolume(ctx context.Context, storage engine.Storage, name string, make bool) error {
	list, err := storage.Volumes(ctx)
	if err != nil {
		return err
	}
	want := engine.Volume{Name: name, Bytes: s.o.SkillsSize, Inodes: s.o.SkillsInodes}
	there := false
	for _, v := range list {
		if v.Name == name {
			there = true
			if v.Bytes > want.Bytes { // it may be an image, which only grows
				return nil
			}
		}
	}
	if !there && !make {
		return fmt.Errorf("skills: %w", fs.ErrNotExist)
	}
	return storage.MakeVolume(ctx, want)
}

// limitSkills bounds a directory of the host, once, where its file system can do that.
func (s *Server) limitSkills(ctx context.Context, storage engine.Storage, ns string, dir engine.Directory) error {
	if _, known := s.skillsMade.Load(ns); known || s.o.SkillsSize == 0 {
		return nil
	}
	limits := engine.Volume{Bytes: s.o.SkillsSize, Inodes: s.o.SkillsInodes}.WithDefaults()
	err := storage.LimitDirectory(ctx, dir, limits.Bytes, limits.Inodes)
	if errors.Is(err, engine.ErrUnenforceable) {
		s.softSkills.Do(func() {
			s.log.Warn("langbot.skills_dir is on a file system that cannot limit its size: leave it empty to keep skills in volumes", "error", err)
		})
		err = nil
	}
	if err == nil {
		s.skillsMade.Store(ns, true)
	}
	return err
}

// skill does an action of the skill store.
func (k *call) skill(ctx context.Context) (any, error) {
	return k.s.skills.Do(ctx, k.at.Namespace(), k.action, k.data, transfers(k.conn))
}

// transfers are the files that a connection is sending.
func transfers(c *door.Conn) *transfer.Set {
	t, _ := c.Value.(*transfer.Set)
	return t
}

// fileChunk takes a part of a file.
func (k *call) fileChunk(context.Context) (any, error) {
	return nil, transfers(k.conn).Chunk(k.data)
}

// Opened prepares a connection: what it may send is settled now.
func (s *Server) Opened(c *door.Conn) {
	s.mu.Lock()
	most := s.settingsLocked(c.Instance()).limits.MaxRPCFileBytes
	s.mu.Unlock()
	c.Value = transfer.NewSet(s.o.Scratch, most, s.uploads)
}

// maxUploads is what all connections together may have sent and not used yet: it is kept
// beside the records of all sessions, which need room as well.
const maxUploads = 1 << 30

// Closed lets go of what a connection has not finished sending.
func (s *Server) Closed(c *door.Conn) {
	if t := transfers(c); t != nil {
		t.Close()
	}
}

// skillState is what the server remembers of skill stores.
type skillState struct {
	skillsMade sync.Map // namespaces whose store was found or made, and has its limits
	softSkills sync.Once
	uploads    *transfer.Pool
}
