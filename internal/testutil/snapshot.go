package testutil

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// check lists the things of one kind that exist now. The keys of the list identify each for its whole
// life; the values are for people.
type check struct {
	kind        string
	machineWide bool // it also sees what other processes have created
	list        func() map[string]string
}

// checks returns all kinds of things that a test can leave behind.
func checks(stateDirs []string) []check {
	return []check{
		{"descriptor", false, listDescriptors},
		{"goroutine", false, listGoroutines},
		{"child process", false, listDescendants},
		{"box process", true, listBoxProcesses},
		{"mount", true, listMounts},
		{"cgroup", true, listCgroups},
		{"loop device", true, func() map[string]string { return listLoops(append([]string{os.TempDir()}, stateDirs...)) }},
		{"state file", true, func() map[string]string { return listState(stateDirs) }},
	}
}

// snapshot has the things of every kind, by the index of the kind.
type snapshot []map[string]string

func takeSnapshot(kinds []check) snapshot {
	s := make(snapshot, len(kinds))
	for i, k := range kinds {
		s[i] = k.list()
	}
	return s
}

// leak is a thing that was not there before.
type leak struct {
	kind, what  string
	machineWide bool
}

func (l leak) String() string { return fmt.Sprintf("%s: %s", l.kind, l.what) }

// compare returns what is in after but not in before, kind by kind.
func compare(kinds []check, before, after snapshot) []leak {
	var leaks []leak
	for i, k := range kinds {
		first := len(leaks)
		for key, what := range after[i] {
			if _, old := before[i][key]; !old {
				leaks = append(leaks, leak{k.kind, what, k.machineWide})
			}
		}
		slices.SortFunc(leaks[first:], func(a, b leak) int { return strings.Compare(a.what, b.what) })
	}
	return leaks
}
