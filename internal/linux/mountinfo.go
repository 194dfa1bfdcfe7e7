package linux

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
)

// MountInfo is one line of /proc/<pid>/mountinfo, see proc_pid_mountinfo(5).
type MountInfo struct {
	ID      uint64
	Parent  uint64   // ID of the mount that this one is mounted on
	Device  string   // major:minor of the file system
	Root    string   // the mounted directory, from the root of the file system
	Point   string   // the mount point, from the root of the process
	Flags   []string // of the mount itself, such as "ro" and "noexec"
	Shared  bool     // mounts below it propagate to other mounts
	FSType  string   // such as "cgroup2"
	Options []string // of the super block
}

// maxMountLine bounds a line of mountinfo. Overlay mounts have long options, and a
// box can nest its directories as deeply as it likes.
const maxMountLine = 16 << 20

// ReadMountInfo lists the mounts in the mount namespace of the calling thread, which may
// differ from that of the process. They are in the kernel's order: a later mount on the
// same path hides an earlier one.
func ReadMountInfo() ([]MountInfo, error) {
	f, err := os.Open("/proc/thread-self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return ParseMountInfo(f)
}

// ParseMountInfo reads all lines of a mountinfo file. A malformed line is an error:
// the skipped mount could be the one that matters.
func ParseMountInfo(r io.Reader) ([]MountInfo, error) {
	var found []MountInfo
	err := eachMountLine(r, func(line []byte) (more bool, err error) {
		m, err := parseMountLine(string(line))
		found = append(found, m)
		return true, err
	})
	if err != nil {
		return nil, err
	}
	return found, nil
}

// FindMountInfo is ParseMountInfo for the single mount with the given ID; ok reports whether
// it was found. Other lines are neither parsed nor kept, because a box can make all of its
// lines very long.
func FindMountInfo(r io.Reader, id uint64) (m MountInfo, ok bool, err error) {
	start := strconv.AppendUint(nil, id, 10)
	start = append(start, ' ')
	err = eachMountLine(r, func(line []byte) (more bool, err error) {
		if ok = bytes.HasPrefix(line, start); ok {
			m, err = parseMountLine(string(line))
		}
		return !ok, err
	})
	return m, ok && err == nil, err
}

func eachMountLine(r io.Reader, fn func(line []byte) (more bool, err error)) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxMountLine)
	for lines.Scan() {
		if more, err := fn(lines.Bytes()); err != nil || !more {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("reading mountinfo: %w", err)
	}
	return nil
}

// parseMountLine reads a line such as
//
//	36 35 98:0 /sub /mnt/point rw,noatime master:1 - ext3 /dev/root rw,errors=continue
func parseMountLine(line string) (MountInfo, error) {
	fields := strings.Split(line, " ")
	sep := slices.Index(fields, "-")
	if sep < 6 || len(fields) < sep+3 {
		return MountInfo{}, fmt.Errorf("mountinfo line %q: unknown form", line)
	}
	id, err := strconv.ParseUint(fields[0], 10, 64)
	parent, perr := strconv.ParseUint(fields[1], 10, 64)
	if err := errors.Join(err, perr); err != nil {
		return MountInfo{}, fmt.Errorf("mountinfo line %q: %w", line, err)
	}
	m := MountInfo{
		ID:     id,
		Parent: parent,
		Device: fields[2],
		Root:   unescapeMount(fields[3]),
		Point:  unescapeMount(fields[4]),
		Flags:  strings.Split(fields[5], ","),
		Shared: slices.ContainsFunc(fields[6:sep], func(f string) bool { return strings.HasPrefix(f, "shared:") }),
		FSType: fields[sep+1],
	}
	if len(fields) > sep+3 {
		m.Options = strings.Split(fields[sep+3], ",")
	}
	return m, nil
}

// unescapeMount undoes the kernel's \ooo for space, tab, newline and backslash.
func unescapeMount(s string) string {
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
