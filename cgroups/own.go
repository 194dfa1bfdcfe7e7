package cgroups

import "strings"

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
