package rootfs

import (
	"fmt"
	"os"
	"strconv"
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
	info, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return nil, err
	}
	return parseSubmounts(string(info), strconv.FormatUint(st.Mnt_id, 10))
}

// parseSubmounts finds the children of mount id in the text of mountinfo
// (proc_pid_mountinfo(5): id, parent, device, root, mount point, …).
func parseSubmounts(info, id string) (subs []string, err error) {
	top, found := "", false
	var children []string
	for line := range strings.Lines(info) {
		f := strings.Fields(line)
		if len(f) < 6 {
			return nil, fmt.Errorf("mountinfo line %q: too short", line)
		}
		if f[0] == id {
			top, found = f[4], true
		}
		if f[1] == id {
			children = append(children, f[4])
		}
	}
	if !found {
		return nil, fmt.Errorf("mount %s: not in mountinfo", id)
	}
	for _, child := range children {
		subs = append(subs, unescape.Replace(strings.TrimPrefix(child, top+"/")))
	}
	return subs, nil
}

// unescape undoes what the kernel does to mount points (seq_path in fs/seq_file.c).
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
