package cgroups

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// mountPoint is one line of /proc/<pid>/mountinfo, see proc_pid_mountinfo(5).
type mountPoint struct {
	root    string   // directory within the file system that is mounted
	path    string   // where it is mounted
	fstype  string   // such as "cgroup2"
	options []string // per super block
}

// parseMountinfo returns the cgroup mounts of a mountinfo file, in its order: a
// later mount on the same path hides an earlier one.
func parseMountinfo(r io.Reader) ([]mountPoint, error) {
	var found []mountPoint
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20) // overlayfs mounts have very long options
	for lines.Scan() {
		m, err := parseMount(lines.Text())
		if err != nil {
			return nil, err
		}
		if m.fstype == "cgroup" || m.fstype == "cgroup2" {
			found = append(found, m)
		}
	}
	return found, lines.Err()
}

func parseMount(line string) (mountPoint, error) {
	// 36 35 98:0 /root /path rw,noatime master:1 - fstype source rw,options
	fields := strings.Fields(line)
	sep := slices.Index(fields, "-")
	if sep < 6 || len(fields) < sep+3 {
		return mountPoint{}, fmt.Errorf("mountinfo line %q: no separator", line)
	}
	m := mountPoint{root: unescape(fields[3]), path: unescape(fields[4]), fstype: fields[sep+1]}
	if len(fields) > sep+3 {
		m.options = strings.Split(fields[sep+3], ",")
	}
	return m, nil
}

// unescape undoes the octal escapes of space, tab, newline and backslash.
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

// parseOwnCgroups reads /proc/<pid>/cgroup: the path of the process on each v1
// hierarchy, by controller, and "" for cgroup2. See cgroups(7).
func parseOwnCgroups(content string) map[string]string {
	paths := map[string]string{}
	for line := range strings.Lines(content) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(f) != 3 {
			continue
		}
		for c := range strings.SplitSeq(f[1], ",") {
			paths[c] = f[2]
		}
	}
	return paths
}
