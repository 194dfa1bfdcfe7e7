package workspace

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// Bounds of one measurement.
const (
	MaxEntries = 500_000
	MaxTime    = 2 * time.Second
	maxDepth   = 128 // a descriptor is open per level
)

// Usage is the space that a workspace takes up.
type Usage struct {
	Bytes   int64 // of disk: holes count nothing, a file counts once per name
	Entries int   // files and directories
	// Complete is false if a bound was reached or a directory could not be read: there is
	// more than was counted.
	Complete bool
}

// Measure counts what the workspace id of tenant takes up, while boxes may write to it. A
// missing workspace takes up nothing. Deleted files that are still open are not seen.
func (s *Store) Measure(ctx context.Context, tenant, id string) (Usage, error) {
	m := measurement{ctx: ctx, until: time.Now().Add(MaxTime), usage: Usage{Complete: true}}
	dir, err := openDir(s.root, encode(tenant)+"/"+encode(id))
	if errors.Is(err, fs.ErrNotExist) {
		return m.usage, nil
	}
	if err != nil {
		return Usage{}, err
	}
	defer dir.Close()
	m.dir(dir, 0)
	return m.usage, ctx.Err()
}

type measurement struct {
	ctx   context.Context
	until time.Time
	usage Usage
}

// dir counts the content of d until a bound is reached.
func (m *measurement) dir(d *os.File, depth int) {
	for {
		names, err := d.Readdirnames(256)
		for _, name := range names {
			if !m.entry(d, name, depth) {
				return
			}
		}
		if err != nil {
			m.usage.Complete = m.usage.Complete && errors.Is(err, io.EOF)
			return
		}
		if m.ctx.Err() != nil || time.Now().After(m.until) {
			m.usage.Complete = false
			return
		}
	}
}

// entry counts one name in d, and reports whether to continue.
func (m *measurement) entry(d *os.File, name string, depth int) bool {
	if m.usage.Entries >= MaxEntries {
		m.usage.Complete = false
		return false
	}
	st, err := linux.StatAt(d, name)
	if err != nil {
		return true // deleted meanwhile
	}
	m.usage.Entries++
	m.usage.Bytes += st.Blocks * 512 // the unit of st_blocks, stat(2)
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return true
	}
	if depth >= maxDepth {
		m.usage.Complete = false
		return true
	}
	sub, err := openDir(d, name)
	if err != nil {
		m.usage.Complete = m.usage.Complete && errors.Is(err, fs.ErrNotExist)
		return true
	}
	defer sub.Close()
	m.dir(sub, depth+1)
	return m.usage.Entries < MaxEntries
}
