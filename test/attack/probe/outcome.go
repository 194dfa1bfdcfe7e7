package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

type kind int // the exit status

const (
	isBlocked kind = iota
	isEscaped
	isUntried
)

// outcome is how a probe ended.
type outcome struct {
	kind
	text string
}

func (o outcome) String() string {
	return [...]string{"blocked", "ESCAPED", "untried"}[o.kind] + ": " + o.text
}

func blocked(format string, args ...any) outcome {
	return outcome{isBlocked, fmt.Sprintf(format, args...)}
}

func escaped(format string, args ...any) outcome {
	return outcome{isEscaped, fmt.Sprintf(format, args...)}
}

func untried(why string) outcome { return outcome{isUntried, why} }

// failing returns blocked with err as the reason. Without an error, what was done is an escape.
func failing(what string, err error) outcome {
	if err == nil {
		return escaped("%s", what)
	}
	return blocked("%s: %s", what, cause(err))
}

// cause returns the name of the errno behind err.
func cause(err error) string {
	var errno unix.Errno
	if errors.As(err, &errno) {
		if name := unix.ErrnoName(errno); name != "" {
			return name
		}
	}
	return err.Error()
}

// all runs attempts until one escapes. If none does, the outcome is blocked, with all their
// reasons, or untried if none could be tried.
func all(attempts ...func() outcome) outcome {
	var reasons []string
	for _, try := range attempts {
		o := try()
		if o.kind == isEscaped {
			return o
		}
		if o.kind == isBlocked && !slices.Contains(reasons, o.text) {
			reasons = append(reasons, o.text)
		}
	}
	if len(reasons) == 0 {
		return untried("no attempt was possible")
	}
	return blocked("%s", strings.Join(reasons, "; "))
}

// each runs try for each value, as all does.
func each[T any](try func(T) outcome, values ...T) outcome {
	var attempts []func() outcome
	for _, v := range values {
		attempts = append(attempts, func() outcome { return try(v) })
	}
	return all(attempts...)
}

// call makes a raw system call, which is an escape if it succeeds.
func call(what string, nr uintptr, args ...uintptr) func() outcome {
	return func() outcome {
		_, err := raw(nr, args...)
		return failing(what, err)
	}
}

func raw(nr uintptr, args ...uintptr) (uintptr, error) {
	var a [6]uintptr
	copy(a[:], args)
	r, _, errno := unix.RawSyscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5])
	if errno != 0 {
		return 0, errno
	}
	return r, nil
}

// calls returns a probe that makes raw system calls.
func calls(attempts ...func() outcome) func(bait) outcome {
	return func(bait) outcome { return all(attempts...) }
}

// opening returns a probe that opens paths, which may be globs, with flags. A successful open is
// the escape; nothing is read or written. A glob that matches nothing is tried as it is.
func opening(flags int, paths ...string) func(bait) outcome {
	return func(bait) outcome {
		return each(func(pattern string) outcome {
			found, _ := filepath.Glob(pattern)
			if len(found) == 0 {
				found = []string{pattern}
			}
			return each(func(path string) outcome { return openOne(path, flags) }, found...)
		}, paths...)
	}
}

func openOne(path string, flags int) outcome {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err == nil {
		unix.Close(fd)
	}
	return failing("opening "+path, err)
}

// workDir returns the directory that probes write to.
func (b bait) workDir() string {
	if dir := b[baitDir]; dir != "" {
		return dir
	}
	dir, err := os.Getwd()
	if err != nil {
		return "/tmp"
	}
	return dir
}
