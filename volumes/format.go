package volumes

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/bits"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	groupBlocks = 8 * block // one block is the bitmap of a group
	inodeSize   = 256
	ownInodes   = 11 // ten of ext4, including the top directory, and the ballast
)

// layout returns how many blocks an image needs to hold bytes and inodes, and how many inodes
// to request. Both are slightly too large; the ballast takes the excess.
func layout(bytes, inodes int64) (blocks, all int64) {
	all = inodes + ownInodes
	// A group has at most 32,768 inodes, and their tables take space from it.
	groups := max(1, (all+groupBlocks/2-1)/(groupBlocks/2))
	data := bytes / block
	for range 8 {
		tables := ((all+groups-1)/groups + 15) / 16 * groups // 16 inodes in a block
		// Bitmaps, and descriptors with room to grow in the groups with copies of them.
		descriptors := groups/64 + 1 + min(1024, groups*16)
		copies := 2 + 2*int64(bits.Len64(uint64(groups))) // powers of 3, 5 and 7
		blocks = data + tables + 2*groups + copies*(1+descriptors) + 64
		blocks += min(blocks/49+1, 4096) // reserved by ext4 for delayed allocation
		blocks = max(blocks, (groups-1)*groupBlocks+1)
		groups = max(groups, (blocks+groupBlocks-1)/groupBlocks)
	}
	// mke2fs drops a last group that has hardly any room besides its tables.
	if rest := blocks % groupBlocks; blocks > groupBlocks && rest != 0 {
		least := ((all+groups-1)/groups+15)/16 + 2048
		blocks += max(0, least-rest)
	}
	return blocks, all
}

// errNoTool means that a program of e2fsprogs is not installed.
var errNoTool = errors.New("install e2fsprogs")

// format creates the file system in image, an empty file.
//
// It names all features, so that /etc/mke2fs.conf has no effect. Nothing has to be zeroed,
// because nothing was ever written: hence lazy_itable_init here and noinit_itable when it
// is mounted. The remaining cost is starting mke2fs, and four fsync calls.
func format(image *os.File, bytes, inodes int64) error {
	blocks, all := layout(bytes, inodes)
	if err := image.Truncate(blocks * block); err != nil {
		return err
	}
	err := run(context.Background(), "mke2fs", image, 0,
		"-q", "-F", "-t", "ext4", "-b", strconv.Itoa(block), "-I", strconv.Itoa(inodeSize), "-m", "0", "-N", strconv.FormatInt(all, 10),
		"-O", "none,ext_attr,resize_inode,dir_index,filetype,extent,64bit,flex_bg,sparse_super,large_file,huge_file,dir_nlink,extra_isize,metadata_csum",
		"-E", "nodiscard,lazy_itable_init=1")
	if err != nil {
		return fmt.Errorf("making a file system: %w", err)
	}
	sb, err := readSuper(image)
	if err != nil {
		return err
	}
	if sb.inodes < all {
		return fmt.Errorf("making a file system: mke2fs gave it %d inodes, not %d", sb.inodes, all)
	}
	return nil
}

// check repairs the file system in image, which must not be mounted.
func check(ctx context.Context, image *os.File) error {
	err := sealSuper(image)
	if err == nil {
		err = run(ctx, "e2fsck", image, 1, "-f", "-y") // 1: errors were corrected
	}
	if err != nil {
		return fmt.Errorf("checking the file system after it was not unmounted: %w", err)
	}
	return nil
}

// programDirs are the directories that may have the programs of e2fsprogs.
var programDirs = []string{"/usr/sbin/", "/sbin/", "/usr/bin/"}

// run executes a program of e2fsprogs with the path of image as its last argument and an
// empty environment. Exit statuses 0 to most mean success. It is killed when ctx ends.
func run(ctx context.Context, program string, image *os.File, most int, args ...string) error {
	i := slices.IndexFunc(programDirs, func(dir string) bool { return unix.Access(dir+program, unix.X_OK) == nil })
	if i < 0 {
		return fmt.Errorf("%q does not exist: %w", programDirs[0]+program, errNoTool)
	}
	program = programDirs[i] + program
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, append(args, "/proc/self/fd/3")...)
	cmd.Env = []string{}
	cmd.Dir = "/"
	cmd.ExtraFiles = []*os.File{image}
	output := &bounded{}
	cmd.Stdout, cmd.Stderr = output, output
	// The program is killed when the thread that started it ends, so keep the thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	err := cmd.Run()
	if code := cmd.ProcessState.ExitCode(); err == nil || code > 0 && code <= most {
		return nil
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", program, context.Cause(ctx))
	}
	return fmt.Errorf("%s: %w: %s", program, err, strings.TrimSpace(output.String()))
}

// bounded keeps the beginning of a program's output.
type bounded struct{ bytes.Buffer }

func (b *bounded) Write(p []byte) (int, error) {
	b.Buffer.Write(p[:min(len(p), 1000-min(b.Len(), 1000))])
	return len(p), nil
}

// super is a part of an ext4 super block: struct ext4_super_block in fs/ext4/ext4.h.
type super struct {
	blocks, freeBlocks        int64
	inodes, freeInodes        int64
	inodesPerGroup, inodeSize int64
	clean                     bool   // unmounted, without errors, and not torn
	sum                       uint32 // the correct checksum
	torn                      bool   // its checksum is wrong
}

const (
	superOffset = 1024
	superSize   = 1024
)

func readSuper(image *os.File) (super, error) {
	b := make([]byte, superSize)
	if _, err := image.ReadAt(b, superOffset); err != nil {
		return super{}, fmt.Errorf("reading the super block: %w", err)
	}
	sb, err := parseSuper(b)
	if err != nil {
		return super{}, err
	}
	sb.sum = checksum(b)
	sb.torn = sb.sum != binary.LittleEndian.Uint32(b[checksumAt:])
	sb.clean = sb.clean && !sb.torn
	return sb, nil
}

// checksumAt is the offset of s_checksum, the checksum of everything before it: crc32c without
// the final inversion (ext4_superblock_csum in fs/ext4/super.c).
const checksumAt = superSize - 4

func checksum(b []byte) uint32 {
	return ^crc32.Checksum(b[:checksumAt], crc32.MakeTable(crc32.Castagnoli))
}

// sealSuper corrects the checksum of the super block. e2fsck writes its changes there piece by
// piece, and the checksum last (write_primary_superblock in lib/ext2fs/closefs.c). If it is
// killed in between, it leaves a super block that no e2fsck can read, and a small file system
// has no copy.
func sealSuper(image *os.File) error {
	sb, err := readSuper(image)
	if err != nil || !sb.torn {
		return err
	}
	if _, err := image.WriteAt(binary.LittleEndian.AppendUint32(nil, sb.sum), superOffset+checksumAt); err != nil {
		return fmt.Errorf("writing the super block: %w", err)
	}
	return image.Sync()
}

func parseSuper(b []byte) (super, error) {
	if len(b) < superSize {
		return super{}, errors.New("the super block is cut short")
	}
	u16 := func(at int) int64 { return int64(binary.LittleEndian.Uint16(b[at:])) }
	u32 := func(at int) int64 { return int64(binary.LittleEndian.Uint32(b[at:])) }
	sb := super{
		blocks: u32(0x4) | u32(0x150)<<32, freeBlocks: u32(0xc) | u32(0x158)<<32,
		inodes: u32(0x0), freeInodes: u32(0x10),
		inodesPerGroup: u32(0x28), inodeSize: u16(0x58),
		clean: u16(0x3a)&3 == 1, // EXT4_VALID_FS, not EXT4_ERROR_FS
	}
	const is64 = 0x80 // EXT4_FEATURE_INCOMPAT_64BIT
	if u16(0x38) != 0xef53 || u32(0x18) != 2 || u32(0x20) != groupBlocks || u32(0x60)&is64 == 0 ||
		sb.inodesPerGroup < 16 || sb.inodesPerGroup > groupBlocks || sb.inodeSize < 128 || sb.inodeSize > block ||
		sb.blocks <= 0 || sb.blocks > 1<<40 || sb.freeBlocks < 0 || sb.freeBlocks > sb.blocks ||
		sb.freeInodes > sb.inodes || sb.inodes < ownInodes {
		return super{}, errors.New("the super block is not that of an image of boxd")
	}
	return sb, nil
}
