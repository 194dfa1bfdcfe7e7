package rootfs

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// submounts returns where, relative to it, other directories are mounted
// directly within the mount whose root is root.
func submounts(root *os.File) ([]string, error) {
	st, err := linux.Statx(root, unix.STATX_MNT_ID) // Linux 5.8
	if err != nil {
		return nil, err
	}
	all, err := linux.ReadMountInfo()
	if err != nil {
		return nil, err
	}
	return children(all, st.Mnt_id)
}

// children returns where the mounts on mount id are, relative to it.
func children(all []linux.MountInfo, id uint64) (subs []string, err error) {
	i := slices.IndexFunc(all, func(m linux.MountInfo) bool { return m.ID == id })
	if i < 0 {
		return nil, fmt.Errorf("mount %d: not in mountinfo", id)
	}
	for _, m := range all {
		if m.Parent == id {
			subs = append(subs, strings.TrimPrefix(m.Point, all[i].Point+"/"))
		}
	}
	return subs, nil
}
