// Package attest measures what this host isolates and limits: by experiments in a probe
// box, with a control for each, never by looking at versions or settings.
//
// It is not for deciding what follows from the answers.
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
	Storage engine.Storage // nil: the quotas are false
	// Image of the probe box; empty: the host's. It needs sh and the usual small tools.
	Image string
	// SkillsUnlimited says that skills in a directory of the host are given no limit,
	// whatever the host can do.
	SkillsUnlimited bool
	// Scratch is a directory in which the probe makes a file that a box must not see, though
	// any user may look into it; empty: [os.TempDir].
	Scratch string
	Logger  *slog.Logger // nil: nobody
}

// Places are the directories of the host that keep workspaces and skills, in each of which
// the probe makes a directory. Where one is empty they are in volumes.
type Places struct {
	Workspaces, Skills engine.Directory
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
	// Late says why the measurement did not come to its end in time: something hangs. Empty if
	// it did, whatever it found.
	Late string
	// unmeasured: there was no probe box, or it was late. It says nothing about the host, only about now.
	unmeasured bool
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
