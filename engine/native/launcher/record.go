package launcher

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/mounts"
	"github.com/boxd/boxd/rootfs"
)

// boxRecord is what the next launcher must know of a service's box. It is written to the
// box's directory before a client hears of the box, and again after each change.
// Everything else the next launcher finds in the kernel, through PID 1.
type boxRecord struct {
	Version  int
	ID       string
	Spec     engine.Spec // at its creation, with defaults
	Limits   engine.Limits
	Degraded []string `json:",omitempty"`
	PID      int      // of PID 1 on the host
	Start    uint64   // of PID 1, see linux.StartTime
	BootID   string   // of the boot in which PID 1 was started
	IDBase   int      // of its lease
	Cgroup   string
	Sandbox  string `json:",omitempty"` // slot of the sandbox of a gVisor box
	Volumes  []volume
	Mounts   []mounted `json:",omitempty"` // in no order
	// Paused: the commands stand still, or are about to, or about to go on.
	Paused bool `json:",omitempty"`
}

const (
	recordVersion = 2
	recordName    = "box.json"
	maxRecord     = 4 << 20
)

// volume is a sized file system of the box's own.
type volume struct {
	Path   string
	Size   int64
	Device rootfs.Device
}

// mounted is a mount that was attached to the box.
type mounted struct {
	engine.Mount
	ID mounts.MountID // pending while it is being attached
	// Under is the mount that Target showed before, while ID is pending. If the launcher is
	// killed meanwhile and Target then shows another mount, that is this mount.
	Under mounts.MountID
	// Limit is the size limit of the mounted directory in bytes, if the box can fill it:
	// engine.Unlimited if only its number of files is limited, 0 if nothing is.
	Limit int64 `json:",omitempty"`
}

// readRecord reads the record of box id from its directory.
func readRecord(dir, id string) (*boxRecord, error) {
	path := filepath.Join(dir, recordName)
	info, err := os.Lstat(path)
	if err != nil {
		return nil, fmt.Errorf("it was not finished: %w", err)
	}
	if !info.Mode().IsRegular() || info.Size() > maxRecord {
		return nil, fmt.Errorf("record %q: not a file of at most %d bytes", path, maxRecord)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	r, err := parseRecord(text)
	if err == nil && r.ID != id {
		err = fmt.Errorf("it is that of box %q", r.ID)
	}
	if err != nil {
		return nil, fmt.Errorf("record %q: %w", path, err)
	}
	return r, nil
}

// parseRecord decodes a record and checks the fields that other code relies on.
func parseRecord(text []byte) (*boxRecord, error) {
	var r boxRecord
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, err
	}
	lease := (r.IDBase - idBase) / idRange
	switch {
	case r.Version != recordVersion:
		return nil, fmt.Errorf("version %d: want %d", r.Version, recordVersion)
	case r.PID <= 1 || r.Start == 0 || r.BootID == "" || r.Cgroup == "":
		return nil, errors.New("it does not say which process is PID 1")
	case r.IDBase < idBase || (r.IDBase-idBase)%idRange != 0 || lease >= idRanges:
		return nil, fmt.Errorf("id base %d: not one of ours", r.IDBase)
	}
	r.Spec.ID = r.ID
	r.Spec.Engine = cmp.Or(r.Spec.Engine, spec.EngineNative) // an older launcher, which had no other
	r.Spec.Isolation = cmp.Or(r.Spec.Isolation, spec.IsolationNamespaces)
	if err := r.Spec.Validate(); err != nil {
		return nil, err
	}
	for _, m := range r.Mounts {
		if err := m.Validate(); err != nil {
			return nil, err
		}
	}
	return &r, nil
}

// save writes the record of the box, if it has one.
func (b *box) save() error {
	b.saving.Lock()
	defer b.saving.Unlock()
	b.mu.Lock()
	if b.record == nil {
		b.mu.Unlock()
		return nil
	}
	r := *b.record
	r.Mounts = slices.Collect(maps.Values(b.mounted))
	b.mu.Unlock()
	text, err := json.Marshal(&r)
	if err != nil {
		return fmt.Errorf("recording box %q: %w", b.id, err)
	}
	if len(text) > maxRecord {
		return fmt.Errorf("recording box %q: its spec and mounts take %d bytes as JSON, must be at most %d: %w", b.id, len(text), maxRecord, engine.ErrInvalid)
	}
	if err := replaceFile(filepath.Join(b.dir, recordName), text); err != nil {
		return fmt.Errorf("recording box %q: %w", b.id, err)
	}
	return nil
}

// replaceFile replaces a file atomically for its readers. It does not sync, because the file
// does not matter after a crash of the machine.
func replaceFile(path string, content []byte) error {
	fresh := path + ".new"
	if err := os.WriteFile(fresh, content, 0o600); err != nil {
		return err
	}
	return os.Rename(fresh, path)
}
