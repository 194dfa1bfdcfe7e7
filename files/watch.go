package files

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/boxd/boxd/agent/files/proto"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
)

// WatchOptions control Watch. The zero value watches the directory itself.
type WatchOptions struct {
	// Recursive also watches the directories below, at most 4096 in all.
	Recursive bool
	Globs     []string // of the reported paths, as in PackOptions
}

// Types of a Change.
const (
	Ready      = proto.Ready
	Created    = proto.Created
	Modified   = proto.Modified
	Attributes = proto.Attributes
	Removed    = proto.Removed
	Missed     = proto.Missed
	Gone       = proto.Gone
)

// Change is a change in a watched directory.
type Change struct {
	// Type is Created (or moved to here), Modified (its content), Attributes (its rights,
	// owner or times) or Removed (or moved away). Ready comes first: changes are reported
	// from now on. After Missed some could not be reported. Gone comes last: the directory
	// itself was removed or moved.
	Type string
	Path string // relative to the directory; need not be valid UTF-8
	Dir  bool
}

// Watch calls each for changes in the directory at path as they happen, until ctx ends, each
// fails, whose error Watch returns, or the directory is gone, when it returns nil. It is
// inotify(7) in the box, with its limits: changes in a mounted directory that are made on the
// host are seen as well, those of a network's other hosts are not. Changes of a file that
// follow one another closely are reported once. Options.Timeout does not apply.
func Watch(ctx context.Context, box engine.Box, o Options, path string, w WatchOptions, each func(Change) error) error {
	if err := checkGlobs("glob", w.Globs); err != nil {
		return err
	}
	option, err := json.Marshal(proto.Watch{Recursive: w.Recursive, Globs: w.Globs})
	if err != nil {
		return err
	}
	lines := &changeLines{each: each}
	r := request{verb: "watching", path: path, args: []string{"watch", path, string(option)}, out: lines, endless: true}
	_, err = r.run(ctx, box, o)
	if lines.odd != nil {
		return r.disturbed(lines.odd)
	}
	if lines.failed != nil {
		return lines.failed
	}
	return err
}

// changeLines parses the lines of an untrusted box.
type changeLines struct {
	each   func(Change) error
	line   []byte // the beginning of one
	odd    error  // what the box sent is malformed
	failed error  // of each
}

func (l *changeLines) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		end := bytes.IndexByte(rest, '\n')
		if end < 0 {
			end = len(rest)
		}
		if len(l.line)+end > proto.MaxInfo {
			l.odd = fmt.Errorf("line of more than %d bytes: %w", proto.MaxInfo, proto.ErrProtocol)
			return 0, l.odd
		}
		l.line = append(l.line, rest[:end]...)
		if end == len(rest) {
			return len(p), nil
		}
		rest = rest[end+1:]
		c, err := proto.ParseChange(l.line)
		l.line = l.line[:0]
		if err == nil && len(c.Path) > 0 {
			for name := range strings.SplitSeq(string(c.Path), "/") {
				if !isName(name) {
					err = fmt.Errorf("change of %s: %w", spec.Quote(string(c.Path)), proto.ErrProtocol)
				}
			}
		}
		if err != nil {
			l.odd = err
			return 0, err
		}
		if l.failed = l.each(Change{Type: c.Type, Path: string(c.Path), Dir: c.Dir}); l.failed != nil {
			return 0, l.failed
		}
	}
	return len(p), nil
}
