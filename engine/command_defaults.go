package engine

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// HomeTarget is the home directory of every user of every box: a separate tmpfs, on which
// files can be executed.
const HomeTarget = "/home/box"

const (
	defaultPATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	defaultLANG = "C.UTF-8" // built into glibc since 2.35, and in Debian before
)

// WithDefaults returns c with its defaults for a box made from s filled in: user, working
// directory, grace, and the environment variables that programs take for granted. The
// result shares no slice with c, and applying it twice changes nothing.
func (c Command) WithDefaults(s Spec) Command {
	user := s.User
	if c.User != nil {
		user = *c.User
	}
	c.User = &user
	if c.Dir == "" {
		c.Dir = HomeTarget
		if slices.ContainsFunc(s.Mounts, func(m Mount) bool { return m.Target == WorkspaceTarget }) {
			c.Dir = WorkspaceTarget
		}
	}
	c.Grace = cmp.Or(c.Grace, DefaultGrace)
	c.Args = slices.Clone(c.Args)
	c.Env = withDefaultEnv(c.Env, userName(user.UID))
	if c.TTY != nil && !sets(c.Env, "TERM=") {
		c.Env = append(c.Env, "TERM=xterm")
	}
	return c
}

// userName returns the name of a user in the box's /etc/passwd (package rootfs). Only the
// box's own user has a line there; the others are named in the same way.
func userName(uid int) string {
	switch uid {
	case 0:
		return "root"
	case 1000:
		return "user"
	case 65534:
		return "nobody"
	}
	return "user" + strconv.Itoa(uid)
}

// withDefaultEnv returns env with the variables that it does not set.
func withDefaultEnv(env []string, user string) []string {
	full := slices.Clone(env)
	for _, kv := range []string{"PATH=" + defaultPATH, "HOME=" + HomeTarget, "USER=" + user, "LANG=" + defaultLANG, "TMPDIR=/tmp"} {
		prefix := kv[:strings.Index(kv, "=")+1]
		if !sets(env, prefix) {
			full = append(full, kv)
		}
	}
	return full
}

// sets reports whether env contains a variable that starts with prefix.
func sets(env []string, prefix string) bool {
	return slices.ContainsFunc(env, func(kv string) bool { return strings.HasPrefix(kv, prefix) })
}
