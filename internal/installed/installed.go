// Package installed finds programs that users do not start. It is linked into the part of boxd that has to start fast.
package installed

import (
	"os"
	"path"
)

// Init is the name of the program that a launcher executes.
const Init = "boxd-init"

// dirs are where packages install such programs.
var dirs = []string{"/usr/libexec/boxd", "/usr/lib/boxd"}

// Find returns the path of a program: beside this one, or where packages install it. If there is none, found is empty.
// looked are the directories in which it was looked for.
func Find(name string) (found string, looked []string) {
	looked = dirs
	if self, err := os.Executable(); err == nil {
		here := path.Dir(self)
		looked = append([]string{here, path.Join(path.Dir(here), "libexec/boxd")}, dirs...)
	}
	for _, dir := range looked {
		if at := path.Join(dir, name); IsProgram(at) {
			return at, looked
		}
	}
	return "", looked
}

// IsProgram reports whether there is an executable file at path.
func IsProgram(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
}
