package doctor

import (
	"errors"
	"fmt"
	"slices"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/linux"
)

// Inside is what the daemon tells [InDaemon].
type Inside struct {
	StateDir string // of the daemon
	Landlock int    // version that confines the daemon; 0: none
	// Box says why no session could be created now; nil: one could.
	Box error
	// Engines are those of sessions, nil if the launcher does not answer, and Wanted those of the configuration.
	Engines []engine.EngineState
	Wanted  []string
}

// hostChecks are the names of the checks that take root, a new process, or files that the daemon's confinement hides.
var hostChecks = []string{
	"privilege", "cgroups", "memory limit", "swap limit", "kernel memory limit", "pids limit", "cpus limit",
	featureUserNS, featureMounts, featureIDMap, featureOverlay, featureSeccomp, featureClone, featurePidfd, featureOpenat2, featureMemfd,
	"network settings", sysctlName(poolTCP), sysctlName(poolUDP), "workspaces", checkLayers, checkVerity, "boxd-init", "leftover",
}

// InDaemon makes the checks of a report that the daemon can make itself, without privilege and under its confinement.
// missing names the others, which take boxd doctor on the host. The caller has asked the launcher; InDaemon only reads
// a few files of procfs and the free space of one file system.
func InDaemon(in Inside) (checks []Check, missing []string) {
	f := Facts{StateDir: in.StateDir, Wanted: in.Wanted, Features: map[string]error{}}
	f.readKernel()
	f.PageSize = 0 // the mode of cgroups, on which the bounds of sockets depend, is not known here
	f.Images.Free, f.Images.Size = diskSpace(in.StateDir)
	if in.Landlock == 0 {
		f.Features[featureLandlock] = fmt.Errorf("%w: %w", errors.ErrUnsupported, linux.ErrNoLandlock)
	}
	for _, e := range in.Engines {
		f.Engines = append(f.Engines, EngineFacts{EngineState: e})
	}
	landlock := needs[slices.IndexFunc(needs, func(n need) bool { return n.name == featureLandlock })]
	checks = append([]Check{f.kernel(), f.flaws(), f.feature(landlock)}, f.pools()...)
	missing = slices.Clone(hostChecks)
	for _, pool := range []string{poolPIDs, poolFiles, poolPTY, poolAIO} {
		if f.Sysctls[pool] == "" { // procfs shows the daemon processes only (ProcSubset=pid)
			missing = append(missing, sysctlName(pool))
		}
	}
	checks = append(checks, f.disk())
	box := Check{Name: "box", Status: OK, Detail: "the launcher builds boxes, and mounts workspaces into them"}
	if in.Box != nil {
		box = Check{Name: "box", Status: Failed, Detail: in.Box.Error(), Mend: "run boxd doctor --explain on the host"}
	}
	return append(append(checks, box), f.engines()...), missing
}
