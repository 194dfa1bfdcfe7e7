package engine

import "github.com/boxd/boxd/engine/spec"

// Package engine/spec, which makes no system calls, declares the values in the signatures
// of this package. With these aliases a program that embeds boxd imports one package.
type (
	// Spec describes a box before it exists.
	Spec = spec.Spec
	// Limits bound the resources of all commands of a box together.
	Limits = spec.Limits
	// User is a numeric user and group ID in a box.
	User = spec.User
	// Mount makes a directory or file of the host, or of a volume, visible in a box.
	Mount = spec.Mount
	// Change describes changes to a running box.
	Change = spec.Change
	// Zygote is an interpreter that a box keeps warm.
	Zygote = spec.Zygote
	// FieldError reports a value that breaks a rule. It matches ErrInvalid.
	FieldError = spec.FieldError
)

// ErrInvalid: a spec, command or change breaks a rule. See [FieldError].
var ErrInvalid = spec.ErrInvalid

// Constants for the fields of a Spec; package engine/spec has all bounds.
const (
	Unlimited       = spec.Unlimited       // switches a limit off
	WorkspaceTarget = spec.WorkspaceTarget // where the workspace is mounted
	HostImage       = spec.HostImage       // the host's own system directories, read-only
	MaxID           = spec.MaxID           // the highest user and group ID of a command
)
