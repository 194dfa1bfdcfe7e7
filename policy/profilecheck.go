package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
)

// Bounds of the times of a session.
const (
	MinIdleTTL = time.Second
	// maxTime is the longest time that can be asked for: more is a slip of the pen.
	maxTime = 366 * 24 * time.Hour
)

// validate checks that every default of p is a value that a request could ask for.
// field is the key of p in the configuration.
func (p Profile) validate(field string) error {
	if err := p.validateWords(field); err != nil {
		return err
	}
	if err := p.Caps.validate(field + ".caps"); err != nil {
		return err
	}
	if p.Network && !p.AllowNetwork {
		return &engine.FieldError{Field: field + ".network", Value: "true", Rule: "needs allow_network: true"}
	}
	if p.Persistent && !p.AllowPersistent {
		return &engine.FieldError{Field: field + ".persistent", Value: "true", Rule: "needs allow_persistent: true"}
	}
	// The caps first, as a request is checked, then what the engine says.
	if err := p.checkCaps(p.asRequest(), func(limit string) string { return "raise " + field + ".caps." + limit }); err != nil {
		return inField(field, err)
	}
	if p.Timeout <= 0 || (p.Caps.Timeout >= 0 && p.Timeout > p.Caps.Timeout) {
		return &engine.FieldError{Field: field + ".timeout", Value: p.Timeout.String(),
			Rule: fmt.Sprintf("must be above 0 and at most the cap %s: raise %s.caps.timeout", p.Caps.Timeout, field)}
	}
	return inField(field, p.asRequest().spec().Validate())
}

// asRequest is what p gives to a request that asks for nothing.
func (p Profile) asRequest() values {
	return values{
		network: p.Network, cpus: p.CPUs, memory: p.Memory, pids: p.PIDs, openFiles: p.OpenFiles, fileSize: p.FileSize,
		writableRoot: p.WritableRoot, tmpSize: p.TmpSize, upperSize: p.UpperSize, workspaceMode: p.WorkspaceMode,
		workspaceSize: p.WorkspaceSize, workspaceInodes: p.WorkspaceInodes, writesWorkspace: p.WorkspaceMode != WorkspaceNone,
		timeout: p.Timeout, idleTTL: p.IdleTTL, maxLifetime: p.MaxLifetime, persistent: p.Persistent,
	}
}

func (p Profile) validateWords(field string) error {
	if !validMode(p.WorkspaceMode) {
		return badMode(field+".workspace_mode", p.WorkspaceMode)
	}
	if !validMode(p.MountMode) {
		return badMode(field+".mount_mode", p.MountMode)
	}
	for _, name := range p.Locked {
		if !slices.Contains(lockable, name) {
			return &engine.FieldError{Field: field + ".locked", Value: spec.Quote(name),
				Rule: "must be one of " + strings.Join(lockable, ", ")}
		}
	}
	return nil
}

func validMode(mode string) bool {
	return mode == WorkspaceRW || mode == WorkspaceRO || mode == WorkspaceNone
}

func badMode(field, mode string) error {
	return &engine.FieldError{Field: field, Value: spec.Quote(mode), Rule: `must be "rw", "ro" or "none"`}
}

// validate refuses caps below what anything could ask for.
func (c Caps) validate(field string) error {
	zero := cmp.Or(
		zeroCap("cpus", c.CPUs), zeroCap("memory", c.Memory), zeroCap("pids", c.PIDs), zeroCap("tmp_size", c.TmpSize),
		zeroCap("upper_size", c.UpperSize), zeroCap("timeout", c.Timeout), zeroCap("idle_ttl", c.IdleTTL),
		zeroCap("max_lifetime", c.MaxLifetime), zeroCap("workspace_size", c.WorkspaceSize),
	)
	if zero != "" {
		return &engine.FieldError{Field: field + "." + zero, Value: "0", Rule: "must be above 0, or -1 for none"}
	}
	if c.CPUs != c.CPUs {
		return &engine.FieldError{Field: field + ".cpus", Value: "NaN", Rule: "must be a number"}
	}
	return nil
}

func zeroCap[T int64 | float64 | spec.Size | spec.Duration](name string, v T) string {
	if v == 0 {
		return name
	}
	return ""
}

// inField puts prefix before the field of a FieldError.
func inField(prefix string, err error) error {
	if bad, ok := err.(*engine.FieldError); ok {
		return &engine.FieldError{Field: prefix + "." + bad.Field, Value: bad.Value, Rule: bad.Rule}
	}
	return err
}
