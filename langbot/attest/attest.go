// Package attest measures what this host isolates and limits: by experiments in a probe
// box, with a control for each, never by looking at versions or settings.
//
// It is not for deciding what follows from the answers.
package attest

import (
	"context"
	"log/slog"
	"time"

	"github.com/boxd/boxd/engine"
)

// The names of the checks.
const (
	NamespaceIsolation      = "namespace_isolation"
	MountIsolation          = "mount_isolation"
	NetworkIsolation        = "network_isolation"
	BoundedEphemeralStorage = "bounded_ephemeral_storage"
	HardWorkspaceQuota      = "hard_workspace_quota"
	HardSkillStorageQuota   = "hard_skill_storage_quota"
	InodeQuota              = "inode_quota"
	CgroupV2                = "cgroup_v2"
)

// Names lists them in the order in which they are reported.
var Names = []string{
	NamespaceIsolation, MountIsolation, NetworkIsolation, BoundedEphemeralStorage,
	HardWorkspaceQuota, HardSkillStorageQuota, InodeQuota, CgroupV2,
}

// Options of a Prober.
type Options struct {
	Engine  engine.Service
	Storage engine.Storage // nil: the quotas are false
	// SkillsDir and Within are the host directory that keeps skills and the root that it
	// must stay in; empty: skills are in volumes.
	SkillsDir, Within string
	Logger            *slog.Logger // nil: nobody
}

// Check is what one experiment showed.
type Check struct {
	OK     bool
	Reason string // one line; empty if OK
}

// Report is what all of them showed.
type Report struct {
	Checks map[string]Check // by name, all of Names
	At     time.Time
}

// Failed lists the names of the checks that are false, in the order of Names.
func (r Report) Failed() []string {
	var failed []string
	for _, name := range Names {
		if !r.Checks[name].OK {
			failed = append(failed, name)
		}
	}
	return failed
}

// Prober measures when it is asked. It is safe for concurrent use.
type Prober struct {
	o Options
}

// New returns a prober. It does nothing until it is asked.
func New(o Options) *Prober { return &Prober{o: o} }

// Report returns a report that is at most maxAge old, and measures if there is none.
// Everybody who asks meanwhile gets the result of that one measurement. It never fails:
// what could not be measured is false.
func (p *Prober) Report(ctx context.Context, maxAge time.Duration) Report {
	return Report{Checks: map[string]Check{}, At: time.Now()}
}
