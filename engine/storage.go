package engine

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path"
	"strings"

	"github.com/boxd/boxd/engine/spec"
)

// Storage keeps directories of limited size, for workspaces and other data that
// outlives a box. All limits are hard: the kernel enforces them, and who writes more
// gets ENOSPC or EDQUOT. It is safe for concurrent use.
type Storage interface {
	// MakeVolume makes the volume, or gives one that exists these limits: ErrInvalid
	// if it cannot become so small. ErrUnenforceable, with the reason, where the host
	// can do neither project quota nor loop devices.
	MakeVolume(ctx context.Context, v Volume) error
	// RemoveVolume removes the volume with all that is in it. An unknown one is no
	// error; one that a box has mounted is not removed, and the error names the box.
	RemoveVolume(ctx context.Context, name string) error
	// Volumes lists all volumes by name, and what they use. Of one that cannot be read
	// there is the name alone: the others are no worse for it.
	Volumes(ctx context.Context) ([]VolumeState, error)
	// OpenDirectory returns a directory in which all files belong to the user of the
	// calling process: an id-mapped view where they do not. What it makes there belongs
	// to the owner of the directory. The caller closes it; nothing stays mounted. Where
	// there is none the error is fs.ErrNotExist too.
	OpenDirectory(ctx context.Context, d Directory) (*os.File, error)
	// LimitDirectory bounds a directory of the host that is not a volume, what is in it
	// already included. ErrUnenforceable, with file system and advice, where there is
	// no project quota. 0, 0 takes the limit away.
	LimitDirectory(ctx context.Context, d Directory, bytes, inodes int64) error
}

// Bounds of a volume.
const (
	MinVolumeBytes  = spec.MinVolumeBytes
	MaxVolumeBytes  = spec.MaxVolumeBytes
	MinVolumeInodes = spec.MinVolumeInodes
	MaxVolumeInodes = spec.MaxVolumeInodes

	bytesPerInode      = 16 << 10
	leastDefaultInodes = 1024
)

// Volume is a directory of limited size that the engine keeps.
type Volume struct {
	// Name is 1 to 64 of a-z, 0-9 and "-", starting with a letter or digit.
	Name string `json:"name"`
	// Bytes is MinVolumeBytes … MaxVolumeBytes. What the file system needs for itself
	// comes out of it.
	Bytes int64 `json:"bytes"`
	// Inodes is how many files and directories there can be: MinVolumeInodes …
	// MaxVolumeInodes; 0 is one for each 16 KiB, at least 1024.
	Inodes int64 `json:"inodes,omitempty"`
}

// WithDefaults returns v with the number of inodes filled in.
func (v Volume) WithDefaults() Volume {
	v.Inodes = cmp.Or(v.Inodes, min(max(v.Bytes/bytesPerInode, leastDefaultInodes), MaxVolumeInodes))
	return v
}

// Validate checks v without touching the kernel. Errors are of type *[FieldError].
func (v Volume) Validate() error {
	if err := ValidateVolumeName(v.Name); err != nil {
		return err
	}
	if v.Bytes < MinVolumeBytes || v.Bytes > MaxVolumeBytes {
		return &FieldError{Field: "volume.bytes", Value: spec.SizeValue(v.Bytes), Rule: fmt.Sprintf("must be %s to %s", spec.FormatSize(MinVolumeBytes), spec.FormatSize(MaxVolumeBytes))}
	}
	return spec.CheckCount("volume.inodes", v.Inodes, MinVolumeInodes, MaxVolumeInodes)
}

// ValidateVolumeName checks the name of a volume.
func ValidateVolumeName(name string) error {
	if !spec.IsVolumeName(name) {
		return &FieldError{Field: "volume", Value: spec.Quote(name), Rule: fmt.Sprintf(`must be 1 to %d of a-z, 0-9 and "-", starting with a letter or digit`, spec.MaxVolumeName)}
	}
	return nil
}

// The ways in which a volume is limited, see [VolumeState].
const (
	ByProjectQuota = "project-quota" // of the file system that it is a directory of
	ByImage        = "image"         // it is a file system of its own
)

// VolumeState is a volume and what it uses.
type VolumeState struct {
	Volume
	UsedBytes  int64  `json:"used_bytes"`
	UsedInodes int64  `json:"used_inodes"`
	By         string `json:"by"` // ByProjectQuota or ByImage; empty for one that cannot be read
}

// Directory names a directory of a volume or of the host.
type Directory struct {
	// Volume that Path is in; empty: Path is one of the host.
	Volume string
	// Path is absolute. In a volume "/" is all of it.
	Path string
	// Within is the directory of the host that Path must be or lie beneath, as for
	// [Mount]. A directory of the host must have one; in a volume it is empty.
	Within string
	// Make makes what is missing, with the owner and the mode of the nearest parent
	// that exists. Nothing of Path may be a symlink then.
	Make bool
	// ReadOnly forbids writes through the descriptor.
	// ReadOnly is the only way to open a directory of the host that belongs to root, for
	// a client that is not root.
	ReadOnly bool
	// Reclaim first gives what is in the directory and belongs to other users of a box
	// ([Mount.Users]) to the owner of the directory. Only of the host.
	Reclaim bool
	// Mappable also tries to id-map the directory as for the mount of a box, and fails with
	// the reason where the kernel cannot: a FieldError.
	Mappable bool
}

// Validate checks the shape of d without touching the kernel. Errors are of type
// *[FieldError].
func (d Directory) Validate() error {
	if err := spec.CheckPath("directory.path", d.Path); err != nil {
		return err
	}
	if d.Volume != "" {
		if err := ValidateVolumeName(d.Volume); err != nil {
			return err
		}
		if d.Within != "" {
			return &FieldError{Field: "directory.within", Value: spec.Quote(d.Within), Rule: "must be empty for a directory of a volume"}
		}
		if d.Reclaim {
			return &FieldError{Field: "directory.reclaim", Value: "true", Rule: "must be false for a directory of a volume"}
		}
	} else if err := spec.CheckPath("directory.within", d.Within); err != nil {
		return err
	}
	if d.Make && (d.Path != path.Clean(d.Path) || strings.ContainsFunc(d.Path, func(r rune) bool { return r < 0x20 || r == 0x7f })) {
		return &FieldError{Field: "directory.path", Value: spec.Quote(d.Path), Rule: "must be cleaned and without control characters to be made"}
	}
	return nil
}

// ValidateLimit checks a request to bound directory d, see [Storage.LimitDirectory].
func ValidateLimit(d Directory, bytes, inodes int64) error {
	if err := d.Validate(); err != nil {
		return err
	}
	if d.Volume != "" {
		return &FieldError{Field: "directory.volume", Value: spec.Quote(d.Volume), Rule: "must be empty: a volume gets its limits when it is made"}
	}
	if bytes < 0 || bytes > MaxVolumeBytes {
		return &FieldError{Field: "directory.bytes", Value: spec.SizeValue(bytes), Rule: "must be 0 (no limit) to " + spec.FormatSize(MaxVolumeBytes)}
	}
	if inodes < 0 || inodes > MaxVolumeInodes {
		return &FieldError{Field: "directory.inodes", Value: fmt.Sprint(inodes), Rule: fmt.Sprintf("must be 0 (no limit) to %d", MaxVolumeInodes)}
	}
	return nil
}
