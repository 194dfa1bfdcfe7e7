package native

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/rootfs"
)

// defaultPath is the PATH of a command that is given none.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// withDefaults fills in what a command leaves open, from the spec of its box.
func withDefaults(c engine.Command, spec engine.Spec) engine.Command {
	if c.User == nil {
		c.User = &spec.User
	}
	if c.Dir == "" {
		c.Dir = rootfs.HomeDir
		for _, m := range spec.Mounts {
			if m.Target == engine.WorkspaceTarget {
				c.Dir = m.Target
			}
		}
	}
	c.Grace = cmp.Or(c.Grace, engine.DefaultGrace)
	c.Env = defaultEnv(c)
	return c
}

// defaultEnv adds the variables that programs cannot do without.
func defaultEnv(c engine.Command) []string {
	set := map[string]bool{}
	for _, v := range c.Env {
		name, _, _ := strings.Cut(v, "=")
		set[name] = true
	}
	env := c.Env[:len(c.Env):len(c.Env)]
	add := func(name, value string) {
		if !set[name] {
			env = append(env, name+"="+value)
		}
	}
	add("PATH", defaultPath)
	add("HOME", rootfs.HomeDir)
	add("USER", userName(c.User.UID))
	add("LANG", "C.UTF-8")
	add("TMPDIR", "/tmp")
	if c.TTY != nil {
		add("TERM", "xterm")
	}
	return env
}

func userName(uid int) string {
	if uid == 0 {
		return "root"
	}
	return fmt.Sprint(uid)
}
