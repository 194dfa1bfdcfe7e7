package seccomp

import (
	"slices"

	"golang.org/x/sys/unix"
)

// CompileUnpacker returns the filter of a box that writes a layer of an image, as [Compile]
// returns that of any other box. Beyond that one it allows whiteouts, which are character devices
// 0:0 that give access to nothing (vfs_mknod, Linux 5.8), and fsetxattr(2): layers
// have user.*; other names need capabilities that no box has, except POSIX ACLs. Those are memory
// that no limit counts, but such a box runs boxd's own program only, and a layer is on a disk,
// where an inode without users gives them back.
func CompileUnpacker() ([]byte, error) { return compile(arch.unpackerProgram) }

func (a arch) unpackerProgram() []unix.SockFilter {
	byArguments := slices.Clone(checked)
	for i, c := range byArguments {
		if replaced, ok := unpackerChecks[c.name]; ok {
			byArguments[i].check = replaced
		}
	}
	return a.boxProgram(byArguments)
}

var unpackerChecks = map[string]check{
	// The kernel takes the low 32 bits of the device (fs/namei.c).
	"mknodat":   append(check{{[]cond{is(2, unix.S_IFMT|setid, unix.S_IFCHR), is(3, all, 0)}, allow}}, noSetidNode(2)...),
	"fsetxattr": {{nil, allow}},
}
