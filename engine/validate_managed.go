package engine

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/boxd/boxd/engine/spec"
)

// maxKey is the length of the longest Key.
const maxKey = 64

// Command returns the fields that m shares with a Command.
func (m Managed) Command() Command {
	return Command{Args: m.Args, Env: m.Env, Dir: m.Dir, MakeDir: m.MakeDir, User: m.User, TTY: m.TTY}
}

// Validate checks m without touching the kernel. It returns the first broken rule as a
// *[FieldError].
func (m Managed) Validate() error {
	return cmp.Or(m.validateKey(), m.Command().Validate(), m.validateHistory(), spec.CheckSize("memory", m.Memory, spec.MinMemory))
}

func (m Managed) validateKey() error {
	if m.Key == "" || len(m.Key) > maxKey || strings.Trim(m.Key, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
		return &FieldError{Field: "key", Value: spec.Quote(m.Key), Rule: fmt.Sprintf("must be 1 to %d of a-z, 0-9 and \"-\"", maxKey)}
	}
	return nil
}

func (m Managed) validateHistory() error {
	for field, size := range map[string]int64{"history": m.History, "stderr_history": m.StderrHistory} {
		if size != 0 && (size < MinHistory || size > MaxHistory) {
			return &FieldError{Field: field, Value: spec.SizeValue(size), Rule: fmt.Sprintf("must be %s to %s", spec.FormatSize(MinHistory), spec.FormatSize(MaxHistory))}
		}
	}
	return nil
}
