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

// Storage keeps volumes: directories of limited size for workspaces and other data that
// outlives a box. Its limits are hard: the kernel enforces them, and a process that
// writes more gets ENOSPC or EDQUOT. It is safe for concurrent use.
//
// To mount a volume, name it in [Mount].Volume.
type Storage interface {
	// MakeVolume creates a volume, or changes the limits of an existing one. ErrInvalid:
	// the volume holds more than the new limits allow. ErrUnenforceable, with the reason:
	// the host supports neither project quotas nor loop devices.
	//
	// With From it creates a copy of that volume, and does nothing if the volume exists. If
	// ctx ends first, the copy is given up, and RemoveVolume removes what may be left. The
	// error is ErrInvalid, with the reason, if a box writes to From meanwhile, or if volumes
	// of this host cannot be copied.
	MakeVolume(ctx context.Context, v Volume) error
	// RemoveVolume deletes a volume with its content. Removing an unknown one does
	// nothing. If a box has it mounted, the error names the box.
	RemoveVolume(ctx context.Context, name string) error
	// Volumes lists all volumes with their usage, sorted by name. A volume that cannot be
	// read is listed with its name only.
	Volumes(ctx context.Context) ([]VolumeState, error)
	// OpenDirectory opens a directory so that its files belong to the user of the calling
	// process. If they belong to another user, the result is an id-mapped view; files that
	// the caller creates in it belong to the directory's owner. The caller closes it; no
	// mount remains. fs.ErrNotExist: there is no such directory.
	OpenDirectory(ctx context.Context, d Directory) (*os.File, error)
	// LimitDirectory limits a directory of the host that is not a volume; its present
	// content counts. 0, 0 removes the limit. ErrUnenforceable: the file system has no
	// project quota; the error names it and says what to do.
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

// Volume is a directory of limited size, kept by the engine.
type Volume struct {
	// Name is 1 to 64 of a-z, 0-9 and "-", starting with a letter or digit.
	Name string `json:"name"`
	// Bytes is the size, MinVolumeBytes to MaxVolumeBytes. It includes what the file
	// system itself needs.
	Bytes int64 `json:"bytes"`
	// Inodes is the maximum number of files and directories, MinVolumeInodes to
	// MaxVolumeInodes. 0 means one for each 16 KiB, and at least 1024.
	Inodes int64 `json:"inodes,omitempty"`
	// From is the volume whose content a new one gets.
	From string `json:"from,omitempty"`
}

// WithDefaults returns v with Inodes filled in.
func (v Volume) WithDefaults() Volume {
	v.Inodes = cmp.Or(v.Inodes, min(max(v.Bytes/bytesPerInode, leastDefaultInodes), MaxVolumeInodes))
	return v
}

// Validate checks v without touching the kernel. Errors are of type *[FieldError].
func (v Volume) Validate() error {
	if err := ValidateVolumeName(v.Name); err != nil {
		return err
	}
	if v.From != "" {
		if err := ValidateVolumeName(v.From); err != nil {
			return err
		}
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

// How a volume's limits are enforced, see [VolumeState].
const (
	ByProjectQuota = "project-quota" // the volume is a directory with a project quota
	ByImage        = "image"         // the volume is a file system in an image file
)

// VolumeState is a volume and what it uses.
type VolumeState struct {
	Volume
	UsedBytes  int64  `json:"used_bytes"`
	UsedInodes int64  `json:"used_inodes"`
	By         string `json:"by"` // ByProjectQuota or ByImage; empty if the volume cannot be read
}

// Directory names a directory of a volume or of the host.
type Directory struct {
	// Volume is the name of the volume that contains Path; empty for a path of the host.
	Volume string
	// Path is absolute. In a volume, "/" is its root.
	Path string
	// Within is the directory of the host that must contain Path, as for [Mount]. It is
	// required for a path of the host, and empty for one in a volume.
	Within string
	// Make creates missing directories, with the owner and mode of the nearest existing
	// parent. No part of Path may then be a symlink.
	Make bool
	// ReadOnly forbids writing through the descriptor. A client that is not root can
	// open a directory of the host that belongs to root only this way.
	ReadOnly bool
	// Reclaim first changes the owner of files that other users of a box created in the
	// directory ([Mount].Users) to the directory's owner. For directories of the host.
	Reclaim bool
	// Mappable also tries to id-map the directory, as mounting it in a box would, and
	// fails with a FieldError that gives the reason if the kernel cannot.
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

// ValidateLimit checks the arguments of [Storage].LimitDirectory.
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
