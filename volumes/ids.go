package volumes

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// boxd's range of project IDs, which no other program is known to use: Docker, Podman and
// Kubernetes count up from small IDs and from 1048577, and systemd uses IDs from 2^31 on.
const (
	firstID = 0x62780000 // "bx"
	lastID  = firstID + 0xffff
)

func inRange(id uint32) bool { return id >= firstID && id <= lastID }

// ids holds the project IDs on record.
type ids struct {
	mu    sync.Mutex
	taken map[uint32]bool
}

// take puts id on record, and reports whether it was free.
func (i *ids) take(id uint32) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.taken[id] {
		return false
	}
	if i.taken == nil {
		i.taken = map[uint32]bool{}
	}
	i.taken[id] = true
	return true
}

// isStale reports whether id is in our range but has neither a record nor limits: a Store has
// removed the limit of a directory while others were writing, and left files in the project.
func (i *ids) isStale(on *os.File, id uint32) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !inRange(id) || i.taken[id] {
		return false
	}
	q, err := linux.GetProjectQuota(on, id)
	return err == nil && q.Bytes == 0 && q.Inodes == 0
}

// drop removes id from the record.
func (i *ids) drop(on *os.File, id uint32) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.taken, id)
	return cleanLimits(on, id)
}

// clean removes the limits of id if it is not on record.
func (i *ids) clean(on *os.File, id uint32) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.taken[id] {
		return nil
	}
	return cleanLimits(on, id)
}

// cleanLimits removes the limits of id, unless files still belong to it, such as deleted files
// that are open. Then the limits stay, and nobody else gets the ID, because claim asks the
// kernel.
func cleanLimits(on *os.File, id uint32) error {
	q, err := linux.GetProjectQuota(on, id)
	if err != nil || q == (linux.ProjectQuota{}) || q.UsedBytes != 0 || q.UsedInodes != 0 {
		return err
	}
	return linux.SetProjectQuota(on, id, 0, 0)
}

// claim finds a project ID that is not on record and to which nothing on the file system of
// dir belongs, and puts it on record. claim is a nameless file in that project: if another
// Store on the same file system claims the same ID, at least one of the two sees the other's
// file before it uses the ID. The caller closes claim once something else belongs to the
// project.
func (i *ids) claim(dir *os.File) (id uint32, claim *os.File, err error) {
	const tries = 1000
	for try := range tries {
		id = firstID + uint32(rand.IntN(lastID-firstID+1))
		if !i.take(id) {
			continue
		}
		// Limits without usage are mostly leftovers, but someone may have set them on purpose.
		claim, err = claimID(dir, id, try > tries/2)
		if claim != nil {
			return id, claim, nil
		}
		i.mu.Lock()
		delete(i.taken, id)
		i.mu.Unlock()
		if err != nil {
			return 0, nil, err
		}
	}
	return 0, nil, fmt.Errorf("no project id from %d to %d is free", firstID, lastID)
}

// claimID returns nil if the ID is already in use.
func claimID(dir *os.File, id uint32, limited bool) (*os.File, error) {
	q, err := linux.GetProjectQuota(dir, id)
	if err != nil || q.UsedBytes != 0 || q.UsedInodes != 0 || !limited && (q.Bytes != 0 || q.Inodes != 0) {
		return nil, err
	}
	f, err := nameless(dir)
	if err != nil {
		return nil, err
	}
	if err = setProject(f, id, false); err == nil {
		q, err = linux.GetProjectQuota(dir, id)
	}
	if err != nil || q.UsedInodes != 1 {
		f.Close()
		return nil, err
	}
	return f, nil
}

// setProject puts f into a project. With inherit, new entries of the directory f get it too.
func setProject(f *os.File, id uint32, inherit bool) error {
	a, err := linux.GetFileAttr(f)
	if err != nil {
		return err
	}
	a.Project = id
	a.Flags &^= linux.ProjectInherit
	if inherit {
		a.Flags |= linux.ProjectInherit
	}
	return linux.SetFileAttr(f, a)
}

// quotaOn returns nil if the file system of dir enforces project quota. Otherwise the error is
// ErrNoQuota with the reason and what to do.
func quotaOn(dir *os.File) error {
	if err := checkKernel(); err != nil {
		return fmt.Errorf("%w on %q: %w", ErrNoQuota, dir.Name(), err)
	}
	on, err := linux.ProjectQuotaOn(dir)
	if on {
		return nil
	}
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w on %q: %w", ErrNoQuota, dir.Name(), err)
	}
	st, err := linux.Fstatfs(dir)
	if err != nil {
		return fmt.Errorf("%w on %q: %w", ErrNoQuota, dir.Name(), err)
	}
	switch st.Type {
	case unix.EXT4_SUPER_MAGIC:
		return fmt.Errorf(`%w on %q: its file system, ext4, needs "tune2fs -O project,quota" while it is not mounted, the mount option prjquota, and a kernel with CONFIG_QFMT_V2`, ErrNoQuota, dir.Name())
	case unix.XFS_SUPER_MAGIC:
		return fmt.Errorf("%w on %q: its file system, XFS, needs the mount option prjquota, and a kernel with CONFIG_XFS_QUOTA", ErrNoQuota, dir.Name())
	}
	return fmt.Errorf("%w on %q: its file system, type %#x, is neither ext4 nor XFS", ErrNoQuota, dir.Name(), uint32(st.Type))
}

// checkKernel refuses kernels before Linux 5.13: there the owner of a directory, even in a user
// namespace, can remove it from its project with FS_IOC_SETFLAGS.
func checkKernel() error {
	release, _, err := linux.KernelRelease()
	if err != nil {
		return err
	}
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return fmt.Errorf("kernel release %q: %w", release, err)
	}
	if major < 5 || major == 5 && minor < 13 {
		return fmt.Errorf("boxes can leave their project on Linux %s, but not on 5.13 and later", release)
	}
	return nil
}

// treeID parses the file name of a limited tree's record, which contains the project ID.
func treeID(name string) (id uint32, ok bool) {
	digits, ok := strings.CutSuffix(name, treeSuffix)
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 10, 32)
	if err != nil || !inRange(uint32(n)) || idText(uint32(n)) != digits {
		return 0, false
	}
	return uint32(n), true
}
