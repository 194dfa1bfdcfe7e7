// Package attest measures what this host isolates and limits. It runs experiments in a probe box,
// each with a control, and never goes by versions or settings.
//
// What follows from the results is decided elsewhere.
package attest

import (
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
	Storage engine.Storage // if it is nil, the checks of quotas fail
	// SkillsUnlimited means that skills in a directory of the host get no limit, even if the
	// host could enforce one.
	SkillsUnlimited bool
	// Scratch is the directory in which the probe creates a file that any user of the host can
	// read and a box must not see; empty: the first usable one of [Public].
	Scratch string
	Logger  *slog.Logger // nil discards
}

// Places are the directories of the host that keep workspaces and skills; the probe creates a
// directory in each. What has no directory is kept in volumes.
type Places struct {
	Workspaces, Skills engine.Directory
}

// Check is the result of one experiment.
type Check struct {
	OK     bool   `json:"ok"`
	Reason string `json:"reason,omitempty"` // one line; empty if OK
}

// Report has the results of all experiments. It must not be changed.
type Report struct {
	Checks map[string]Check // by name, all of Names
	At     time.Time
	// Late says why the measurement did not end in time, because something hangs. It is empty if
	// it did, whatever the results.
	Late string
	// unmeasured means that there was no probe box, or that the measurement was late. Such a
	// report describes the moment, not the host.
	unmeasured bool
}

// Unmeasured returns a report in which every check fails for the same reason.
func Unmeasured(reason string) Report {
	r := Report{Checks: make(map[string]Check), At: time.Now(), unmeasured: true}
	for _, name := range Names {
		r.Checks[name] = Check{Reason: reason}
	}
	return r
}

// Failed lists the names of the failed checks, in the order of Names.
func (r Report) Failed() []string {
	var failed []string
	for _, name := range Names {
		if !r.Checks[name].OK {
			failed = append(failed, name)
		}
	}
	return failed
}
