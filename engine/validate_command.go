package engine

import (
	"cmp"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/boxd/boxd/engine/spec"
)

// Limits of execve(2). A command that exceeds them is refused with the reason instead of
// E2BIG.
const (
	// maxArg is MAX_ARG_STRLEN of <linux/binfmts.h>, 32 pages with the NUL, for
	// pages of 4 KiB.
	maxArg = 32*4096 - 1
	// maxArgs bounds arguments and environment together: a quarter of the
	// RLIMIT_STACK of 8 MiB (bprm_stack_limits in fs/exec.c). Each string counts
	// with its NUL and with the 8 bytes of its pointer. reservedArgs of it are
	// kept for the path of the program, which the kernel counts too (PATH_MAX),
	// and for the variables that are added by default.
	maxArgs      = 2 << 20
	reservedArgs = 2 * 4096
	pointerSize  = 8
)

// Bounds of the times and the output of a command; a larger value is a mistake.
const (
	maxTimeout = 366 * 24 * time.Hour
	maxGrace   = time.Hour
	maxOutput  = spec.MaxMemory
)

// Validate checks c without touching the kernel. It returns the first broken rule as a
// *[FieldError].
func (c Command) Validate() error {
	return cmp.Or(
		c.validateArgs(),
		c.validateBuiltin(),
		c.validateEnv(),
		c.validateArgsSize(),
		c.validateDir(),
		c.validateUser(),
		c.validateStreams(),
		c.validateTimes(),
	)
}

func (c Command) validateArgs() error {
	if len(c.Args) == 0 || c.Args[0] == "" {
		return &FieldError{Field: "args", Value: fmt.Sprintf("%q", c.Args[:min(len(c.Args), 1)]), Rule: "must start with the name of a program"}
	}
	for i, arg := range c.Args {
		if err := validateArg(fmt.Sprintf("args[%d]", i), arg, arg); err != nil {
			return err
		}
	}
	return nil
}

func (c Command) validateBuiltin() error {
	switch {
	case c.Builtin == "":
		return nil
	case c.Builtin != BuiltinFiles && c.Builtin != BuiltinDial && c.Builtin != BuiltinUnpack:
		return &FieldError{Field: "builtin", Value: spec.Quote(c.Builtin), Rule: fmt.Sprintf("must be %q, %q or %q", BuiltinFiles, BuiltinDial, BuiltinUnpack)}
	case c.Zygote != "":
		return &FieldError{Field: "zygote", Value: spec.Quote(c.Zygote), Rule: "must be empty for a builtin"}
	case len(c.Env) > 0:
		return &FieldError{Field: "env", Value: fmt.Sprintf("%d variables", len(c.Env)), Rule: "must be empty for a builtin"}
	case c.TTY != nil:
		return &FieldError{Field: "tty", Value: "with a builtin", Rule: "must be nil: a builtin has pipes"}
	}
	return nil
}

func (c Command) validateEnv() error {
	for i, kv := range c.Env {
		// Values are often secret and errors end up in logs: show the key only.
		field := fmt.Sprintf("env[%d]", i)
		key, _, found := strings.Cut(kv, "=")
		if err := validateArg(field, kv, key); err != nil {
			return err
		}
		if !found || key == "" {
			return &FieldError{Field: field, Value: spec.Quote(key), Rule: "must be KEY=VALUE"}
		}
	}
	return nil
}

// validateArg checks one string of argv or of the environment. An error may repeat only
// shown, a part of it.
func validateArg(field, s, shown string) error {
	if strings.ContainsRune(s, 0) {
		return &FieldError{Field: field, Value: spec.Quote(shown), Rule: "must not contain a NUL byte"}
	}
	if len(s) > maxArg {
		return &FieldError{Field: field, Value: spec.Quote(shown), Rule: fmt.Sprintf("must be at most %d bytes long, the limit of execve; pass more by stdin or a file", maxArg)}
	}
	return nil
}

// ArgsSize returns how many bytes Args and Env take up of the space that execve(2) allows.
func (c Command) ArgsSize() int {
	total := 0
	for _, list := range [][]string{c.Args, c.Env} {
		for _, s := range list {
			total += len(s) + 1 + pointerSize
		}
	}
	return total
}

func (c Command) validateArgsSize() error {
	if total := c.ArgsSize(); total > maxArgs-reservedArgs {
		return &FieldError{Field: "args and env", Value: fmt.Sprintf("%d bytes", total), Rule: fmt.Sprintf("must be at most %d bytes together, the limit of execve; pass more by stdin or a file", maxArgs-reservedArgs)}
	}
	return nil
}

// validateDir refuses /proc because a working directory below it can lead out of the box
// through a leaked descriptor, as in CVE-2024-21626. The agent notices a symlink to it when
// it enters the directory.
func (c Command) validateDir() error {
	if c.Dir == "" {
		return nil
	}
	if err := spec.CheckPath("dir", c.Dir); err != nil {
		return err
	}
	if clean := path.Clean(c.Dir); clean == "/proc" || strings.HasPrefix(clean, "/proc/") {
		return &FieldError{Field: "dir", Value: spec.Quote(c.Dir), Rule: "must not be below /proc"}
	}
	return nil
}

func (c Command) validateUser() error {
	if c.User == nil {
		return nil
	}
	return c.User.Validate("user")
}

func (c Command) validateStreams() error {
	if c.TTY != nil && c.Stderr != nil {
		return &FieldError{Field: "stderr", Value: "with a terminal", Rule: "must be nil: a terminal has one output, Stdout"}
	}
	if c.OutputLimit < 0 || c.OutputLimit > maxOutput {
		return &FieldError{Field: "output_limit", Value: spec.SizeValue(c.OutputLimit), Rule: "must be at most " + spec.FormatSize(maxOutput)}
	}
	return nil
}

func (c Command) validateTimes() error {
	if c.Timeout < 0 || c.Timeout > maxTimeout {
		return &FieldError{Field: "timeout", Value: c.Timeout.String(), Rule: "must be at most " + maxTimeout.String()}
	}
	if c.Grace < 0 || c.Grace > maxGrace {
		return &FieldError{Field: "grace", Value: c.Grace.String(), Rule: fmt.Sprintf("must be at most %s, or 0 for %s", maxGrace, DefaultGrace)}
	}
	if c.CancelGrace < 0 || c.CancelGrace > maxGrace {
		return &FieldError{Field: "cancel_grace", Value: c.CancelGrace.String(), Rule: fmt.Sprintf("must be at most %s, or 0 for none", maxGrace)}
	}
	return nil
}
