// Package pathin compares paths as text: it looks at no file and follows no symlink. Paths
// are cleaned by the caller, and both absolute or both relative.
package pathin

import "strings"

// In reports whether p is dir or lies below it. "." is above every relative path.
func In(p, dir string) bool {
	_, ok := Rel(p, dir)
	return ok
}

// Below reports whether p lies below dir, and is not dir itself.
func Below(p, dir string) bool {
	rel, ok := Rel(p, dir)
	return ok && rel != "."
}

// Rel returns p relative to dir, "." for dir itself; ok reports whether p lies in dir. It
// never answers with "..", as [path/filepath.Rel] may.
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
