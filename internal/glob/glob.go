// Package glob matches slash-separated paths: each name by a pattern of path.Match, and
// "**" any number of directories. A directory that matches stands for everything in it.
package glob

import (
	"fmt"
	"path"
	"strings"
)

// Bounds of a Set.
const (
	MaxPatterns = 64
	MaxLength   = 1024 // of a pattern, in bytes
)

// Set is a list of patterns. The empty Set matches everything.
type Set [][]string

// Parse checks patterns and returns their Set.
func Parse(patterns []string) (Set, error) {
	if len(patterns) > MaxPatterns {
		return nil, fmt.Errorf("%d patterns: must be at most %d", len(patterns), MaxPatterns)
	}
	var s Set
	for _, p := range patterns {
		if len(p) > MaxLength {
			return nil, fmt.Errorf("pattern of %d bytes: must have at most %d", len(p), MaxLength)
		}
		names := strings.Split(p, "/")
		for _, name := range names {
			_, err := path.Match(name, "")
			switch {
			case name == "" || name == "." || name == "..":
				return nil, fmt.Errorf(`pattern %q: must be relative, without "." and ".." and without a slash at its end`, p)
			case err != nil || strings.Contains(name, "\x00"):
				return nil, fmt.Errorf("pattern %q: must be a pattern such as *.png, src or **/*.csv", p)
			}
		}
		s = append(s, names)
	}
	return s, nil
}

// State is how far a path has matched.
type State struct {
	set Set
	all bool // everything from here on matches
	at  []position
}

// position is the next name of a pattern.
type position struct{ pattern, name int }

// Begin returns the state of the directory to which the patterns are relative.
func (s Set) Begin() State {
	st := State{set: s, all: len(s) == 0}
	for i := range s {
		st.add(position{i, 0})
	}
	return st
}

// add adds p, and the position after it if p is "**", which may stand for no directory.
func (st *State) add(p position) {
	names := st.set[p.pattern]
	for {
		if p.name == len(names) {
			st.all = true
			return
		}
		for _, known := range st.at {
			if known == p {
				return
			}
		}
		st.at = append(st.at, p)
		if names[p.name] != "**" {
			return
		}
		p.name++
	}
}

// Enter returns the state of the entry name of a directory that has state st.
func (st State) Enter(name string) State {
	if st.all {
		return st
	}
	next := State{set: st.set}
	for _, p := range st.at {
		pattern := st.set[p.pattern][p.name]
		if pattern == "**" {
			next.add(p)
		} else if ok, _ := path.Match(pattern, name); ok {
			next.add(position{p.pattern, p.name + 1})
		}
	}
	return next
}

// Matched reports whether the path matches.
func (st State) Matched() bool { return st.all }

// Possible reports whether the path matches, or one below it can.
func (st State) Possible() bool { return st.all || len(st.at) > 0 }

// Match reports whether a path matches, or a directory above it.
func (s Set) Match(p string) bool {
	st := s.Begin()
	for name := range strings.SplitSeq(p, "/") {
		st = st.Enter(name)
	}
	return st.Matched()
}
