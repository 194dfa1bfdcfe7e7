// Package glob matches slash-separated paths: each name by a pattern of path.Match, and
// "**" any number of directories. A directory that matches stands for everything in it.
package glob

import (
	"fmt"
	"math/bits"
	"path"
	"slices"
	"strings"
)

// Bounds of a Set. They bound what matching one name costs: at most MaxPatterns × MaxNames calls of
// path.Match, which has no exponential patterns.
const (
	MaxPatterns = 64
	MaxLength   = 1024     // of a pattern, in bytes
	MaxNames    = 64       // of a pattern
	MaxTotal    = 16 << 10 // of all patterns, in bytes
)

// Set is a list of patterns. The empty Set matches everything.
type Set [][]string

// Parse checks patterns and returns their Set.
func Parse(patterns []string) (Set, error) {
	if len(patterns) > MaxPatterns {
		return nil, fmt.Errorf("%d patterns: must be at most %d", len(patterns), MaxPatterns)
	}
	var s Set
	total := 0
	for _, p := range patterns {
		if len(p) > MaxLength {
			return nil, fmt.Errorf("pattern of %d bytes: must have at most %d", len(p), MaxLength)
		}
		if total += len(p); total > MaxTotal {
			return nil, fmt.Errorf("patterns of more than %d bytes altogether: name fewer, or a directory", MaxTotal)
		}
		var names []string
		for name := range strings.SplitSeq(p, "/") {
			_, err := path.Match(name, "")
			switch {
			case name == "" || name == "." || name == "..":
				return nil, fmt.Errorf(`pattern %q: must be relative, without "." and ".." and without a slash at its end`, p)
			case err != nil || strings.Contains(name, "\x00"):
				return nil, fmt.Errorf("pattern %q: must be a pattern such as *.png, src or **/*.csv", p)
			}
			if name == "**" && len(names) > 0 && names[len(names)-1] == "**" {
				continue // it means nothing else
			}
			names = append(names, name)
		}
		if len(names) > MaxNames {
			return nil, fmt.Errorf("pattern of %d names: must have at most %d", len(names), MaxNames)
		}
		s = append(s, names)
	}
	return s, nil
}

// State is how far a path has matched.
type State struct {
	set Set
	all bool     // everything from here on matches
	at  []uint64 // for each pattern, a bit for each name that can be next
}

// Begin returns the state of the directory to which the patterns are relative.
func (s Set) Begin() State {
	st := State{set: s, all: len(s) == 0, at: make([]uint64, len(s))}
	for i := range s {
		st.add(i, 0)
	}
	return st
}

// add makes name n of pattern i one that can be next, and also the one after it if it is "**", which
// may stand for no directory.
func (st *State) add(i, n int) {
	names := st.set[i]
	for ; n < len(names); n++ {
		st.at[i] |= 1 << n
		if names[n] != "**" {
			return
		}
	}
	st.all = true
}

// Enter returns the state of the entry name of a directory that has state st.
func (st State) Enter(name string) State {
	if st.all {
		return st
	}
	next := State{set: st.set, at: make([]uint64, len(st.at))}
	for i, left := range st.at {
		for ; left != 0; left &= left - 1 {
			n := bits.TrailingZeros64(left)
			pattern := st.set[i][n]
			if pattern == "**" {
				next.add(i, n)
			} else if ok, _ := path.Match(pattern, name); ok {
				next.add(i, n+1)
			}
		}
	}
	return next
}

// Matched reports whether the path matches.
func (st State) Matched() bool { return st.all }

// Possible reports whether the path matches, or one below it can.
func (st State) Possible() bool {
	return st.all || slices.ContainsFunc(st.at, func(at uint64) bool { return at != 0 })
}

// Match reports whether a path matches, or a directory above it.
func (s Set) Match(p string) bool {
	st := s.Begin()
	for name := range strings.SplitSeq(p, "/") {
		st = st.Enter(name)
	}
	return st.Matched()
}
