// Package pathin compares paths as text, without looking at any file. The caller cleans both
// paths, and passes either two absolute or two relative ones.
package pathin

import "strings"

// In reports whether p is dir or lies below it. Every relative path lies below ".".
func In(p, dir string) bool {
	_, ok := Rel(p, dir)
	return ok
}

// Below reports whether p lies below dir. dir does not lie below itself.
func Below(p, dir string) bool {
	rel, ok := Rel(p, dir)
	return ok && rel != "."
}

// Overlap reports whether one of the two lies in the other.
func Overlap(p, q string) bool { return In(p, q) || In(q, p) }

// Rel returns p relative to dir, "." for dir itself; ok reports whether p lies in dir. Unlike
// [path/filepath.Rel], it never returns a path with "..".
func Rel(p, dir string) (rel string, ok bool) {
	if p == dir {
		return ".", true
	}
	if dir == "." {
		return p, p != ".." && !strings.HasPrefix(p, "/") && !strings.HasPrefix(p, "../")
	}
	rel, ok = strings.CutPrefix(p, strings.TrimSuffix(dir, "/"))
	if !ok || !strings.HasPrefix(rel, "/") {
		return "", false
	}
	return rel[1:], true
}
