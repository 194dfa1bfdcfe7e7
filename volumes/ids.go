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

// Our range of project ids, which no other program is known to use: Docker, Podman and
// Kubernetes count up from small ones and from 1048577, systemd has those from 2^31.
const (
	firstID = 0x62780000 // "bx"
	lastID  = firstID + 0xffff
)

func inRange(id uint32) bool { return id >= firstID && id <= lastID }

// ids are the project ids on record.
type ids struct {
	mu    sync.Mutex
	taken map[uint32]bool
}

func (i *ids) take(id uint32) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.taken == nil {
		i.taken = map[uint32]bool{}
	}
	i.taken[id] = true
}

// takeFree is take for an id that must not be taken.
func (i *ids) takeFree(id uint32) bool {
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

// isStale says that id is ours, but has neither a record nor limits: something was left
// in it by a Store that took a limit away, while others went on writing.
func (i *ids) isStale(on *os.File, id uint32) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !inRange(id) || i.taken[id] {
		return false
	}
	q, err := linux.GetProjectQuota(on, id)
	return err == nil && q.Bytes == 0 && q.Inodes == 0
}

// drop takes id off the record.
func (i *ids) drop(on *os.File, id uint32) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.taken, id)
	return cleanLimits(on, id)
}

// clean takes the limits of id away if it is on no record.
func (i *ids) clean(on *os.File, id uint32) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.taken[id] {
		return nil
	}
	return cleanLimits(on, id)
}

// cleanLimits takes the limits of id away, unless something still belongs to it (files
// that are deleted and open): then they stay, and nobody gets the id, because claim asks
// the kernel.
func cleanLimits(on *os.File, id uint32) error {
	q, err := linux.GetProjectQuota(on, id)
	if err != nil || q == (linux.ProjectQuota{}) || q.UsedBytes != 0 || q.UsedInodes != 0 {
		return err
	}
	return linux.SetProjectQuota(on, id, 0, 0)
}

// claim finds a project id that nothing on the file system of dir belongs to, and which
// is on no record, and puts it there. Nobody else can have it either while claim is
// open, a nameless file of that project: another Store, on the same file system, sees
// the file, or we see its one, before either uses the id. The caller closes claim after
// the first thing of its own has got the id.
func (i *ids) claim(dir *os.File) (id uint32, claim *os.File, err error) {
	const tries = 1000
	for try := range tries {
		id = firstID + uint32(rand.IntN(lastID-firstID+1))
		if !i.takeFree(id) {
			continue
		}
		// Limits without use are left over, mostly, but may be somebody's plan.
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

// claimID returns nil if somebody else has id.
func claimID(dir *os.File, id uint32, limited bool) (*os.File, error) {
	q, err := linux.GetProjectQuota(dir, id)
	if err != nil || q.UsedBytes != 0 || q.UsedInodes != 0 || !limited && (q.Bytes != 0 || q.Inodes != 0) {
		return nil, err
	}
	fd, err := unix.Openat(int(dir.Fd()), ".", unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, &os.PathError{Op: "open(O_TMPFILE)", Path: dir.Name(), Err: err}
	}
	f := os.NewFile(uintptr(fd), dir.Name()+" (claim)")
	if err = setProject(f, id, false); err == nil {
		q, err = linux.GetProjectQuota(dir, id)
	}
	if err != nil || q.UsedInodes != 1 {
		f.Close()
		return nil, err
	}
	return f, nil
}

// setProject puts f into a project. A directory that inherits passes it on.
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

// quotaOn returns nil if the file system of dir enforces project quota, else ErrNoQuota
// with the reason and what to do.
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

// checkKernel: before Linux 5.13 whoever owns a directory can take it out of its project
// with FS_IOC_SETFLAGS, in a user namespace as well.
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
		return fmt.Errorf("boxes can leave their project on Linux %s, and cannot from 5.13 on", release)
	}
	return nil
}

// treeID is the project id of the record of a limited tree, from its name.
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
