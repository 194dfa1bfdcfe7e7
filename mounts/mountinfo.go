package mounts

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// mountEntry is one line of /proc/<pid>/mountinfo (proc_pid_mountinfo(5)).
type mountEntry struct {
	device string // major:minor of the file system
	root   string // the directory of that file system which is mounted
	point  string // where, from the root of this process
	fsType string
}

// mountTable holds the mounts of this mount namespace by their ids.
type mountTable map[uint64]mountEntry

// readMountTable reads the table of the calling thread, whose namespace may
// differ from that of the process.
func readMountTable() (mountTable, error) {
	const file = "/proc/thread-self/mountinfo"
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("listing mounts: %w", err)
	}
	table := make(mountTable)
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		id, entry, err := parseMountEntry(lines.Text())
		if err != nil {
			return nil, fmt.Errorf("listing mounts: %w", err)
		}
		table[id] = entry
	}
	return table, nil
}

// parseMountEntry reads a line such as
//
//	36 35 98:0 /sub /mnt/point rw,noatime master:1 - ext3 /dev/root rw
func parseMountEntry(line string) (id uint64, entry mountEntry, err error) {
	before, after, found := strings.Cut(line, " - ")
	fields := strings.Split(before, " ")
	if !found || len(fields) < 6 {
		return 0, entry, fmt.Errorf("unknown form of mountinfo line %q", line)
	}
	fsType, _, _ := strings.Cut(after, " ")
	id, err = strconv.ParseUint(fields[0], 10, 64)
	if err != nil {
		return 0, entry, fmt.Errorf("mount id in mountinfo: %w", err)
	}
	return id, mountEntry{
		device: fields[2],
		root:   unescape(fields[3]),
		point:  unescape(fields[4]),
		fsType: fsType,
	}, nil
}

// unescape undoes the kernel's \ooo for space, tab, newline and backslash.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if c, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(c))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// cutDir returns the part of p below dir; both are absolute and cleaned.
func cutDir(p, dir string) (rest string, ok bool) {
	if !isBelow(p, dir) {
		return "", false
	}
	return strings.TrimPrefix(p[len(dir):], "/"), true
}
