package doctor

import (
	"fmt"
	"os"

	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/linux"
)

const (
	checkLayers = "image layers"
	checkVerity = "fs-verity"
	checkDisk   = "disk space"
)

// leastFree is the part of a disk, in percent, below which images are not unpacked and sessions end: the default of
// sessions.min_free.
const leastFree = 5

// ImageFacts are about the file system of StateDir, where images are kept. Errors are as in Facts.Features.
type ImageFacts struct {
	LayersError  error
	LayersByName bool // overlayfs does not take layers by descriptor
	VerityError  error
	// Free is what users other than root can still take of Size bytes; both are 0 if unknown.
	Free, Size int64
}

func gatherImages(dir string) (f ImageFacts) {
	f.LayersByName, f.LayersError = linux.ProbeLayers(dir)
	f.VerityError = linux.ProbeVerity(dir)
	f.Free, f.Size = diskSpace(dir)
	return f
}

// diskSpace returns Free and Size of the file system of dir.
func diskSpace(dir string) (free, size int64) {
	d, err := os.Open(dir)
	if err != nil {
		return 0, 0
	}
	defer d.Close()
	st, err := linux.Fstatfs(d)
	if err != nil {
		return 0, 0
	}
	return int64(st.Bavail) * st.Frsize, int64(st.Blocks) * st.Frsize
}

// images judges whether boxes can have images besides the host's system directories.
func (f Facts) images() []Check {
	layers := Check{Name: checkLayers, Status: OK, Detail: fmt.Sprintf("an overlay takes up to %d layers with mapped ids", spec.MaxLayers)}
	switch err := f.Images.LayersError; {
	case certainNo(err):
		layers.Status, layers.Detail = Degraded, err.Error()
		layers.Mend = `needs Linux 5.19 and a file system such as ext4, xfs or btrfs: otherwise there is only the image "host"`
	case err != nil:
		layers.Status, layers.Detail = Unknown, err.Error()
	case f.Images.LayersByName:
		layers.Detail += ", by name (by descriptor since Linux 6.15)"
	default:
		layers.Detail += ", by descriptor"
	}
	// boxd does without, so its absence is no finding.
	verity := Check{Name: checkVerity, Status: OK, Detail: fmt.Sprintf("%s supports it; boxd does not use it: boxd image verify compares layers with what was unpacked", f.StateDir)}
	if f.Images.VerityError != nil {
		verity.Detail = fmt.Sprintf("not in %s, and not needed: boxd image verify compares layers with what was unpacked", f.StateDir)
	}
	return []Check{layers, verity, f.disk()}
}

func (f Facts) disk() Check {
	disk := Check{Name: checkDisk, Status: OK, Detail: fmt.Sprintf("%s of %s are free in %s", spec.FormatSize(f.Images.Free), spec.FormatSize(f.Images.Size), f.StateDir)}
	switch {
	case f.Images.Size == 0:
		disk.Status, disk.Detail = Unknown, "of "+f.StateDir
	case f.Images.Free < f.Images.Size/100*leastFree:
		disk.Status = Degraded
		disk.Mend = fmt.Sprintf("free some, for example with boxd image gc: below %d %% (sessions.min_free) no image is unpacked, and sessions that write are ended", leastFree)
	}
	return disk
}
