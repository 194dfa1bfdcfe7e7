package cli

import (
	"errors"
	"path/filepath"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// specFlags describe the session that a command is for, if that has to be made.
// Those that boxd run has too mean the same.
type specFlags struct {
	given *pflag.FlagSet

	profile, image, hostname string
	network                  bool
	memory, pids             int64
	cpus                     float64
	tmpSize, upperSize       int64
	workspace                string
	workspaceSize            int64
	workspaceInodes          int64
	workspaceTarget          string
	mounts                   []engine.Mount
	rwRootfs                 bool
	idleTTL, maxLifetime     time.Duration
	persistent, noCreate     bool
}

// specNames are the flags that say something about the session.
var specNames = []string{"profile", "image", "hostname", "network", "memory", "pids", "cpus", "tmp-size", "upper-size",
	"workspace", "workspace-size", "workspace-inodes", "workspace-target", "mount", "rw-rootfs", "idle-ttl", "max-lifetime", "persistent"}

func (f *specFlags) register(cmd *cobra.Command) {
	fs := cmd.Flags()
	f.given = fs
	fs.StringVar(&f.profile, "profile", "", "`NAME` of the profile that says what is not said here (default \"default\")")
	fs.StringVar(&f.image, "image", "", "root file system of the session: `IMAGE` \"host\" is the host's own system directories, read-only")
	fs.BoolVar(&f.network, "network", false, "give the session a network beyond loopback, if its profile may have one")
	fs.Var(sizeValue(&f.memory, "", true), "memory", "memory the session may use, swap off: `SIZE` such as 64M or 1.5G, or \"unlimited\"")
	fs.Var(cpusValue(&f.cpus), "cpus", "processors' worth of time: `N` such as 1.5, or \"unlimited\"")
	fs.Var(pidsValue(&f.pids), "pids", "processes and threads at once: `N`, or \"unlimited\"")
	fs.StringVar(&f.workspace, "workspace", "", "mount the host's `DIR` at "+engine.WorkspaceTarget+" instead of a directory that boxd keeps")
	fs.Var(sizeOrNone(&f.workspaceSize), "workspace-size", "hard limit of the workspace: `SIZE` from 1M, what is beyond does not fit; 0 is none")
	fs.Int64Var(&f.workspaceInodes, "workspace-inodes", 0, "files and directories in it, with --workspace-size: `N` (default: one for each 16K)")
	fs.StringVar(&f.workspaceTarget, "workspace-target", "", "have the workspace at `PATH` in the session instead of "+engine.WorkspaceTarget)
	fs.VarP(mountsValue(&f.mounts), "mount", "v", "mount `SRC:DST[:ro|rw]` or type=bind,source=SRC,target=DST[,readonly] (repeatable)")
	fs.BoolVar(&f.rwRootfs, "rw-rootfs", false, "make the root writable; changes vanish with the box")
	fs.Var(sizeValue(&f.upperSize, "", false), "upper-size", "room for changes to the root, with --rw-rootfs: `SIZE`")
	fs.Var(sizeValue(&f.tmpSize, "", false), "tmp-size", "room in /tmp, the home directory and /dev/shm, each: `SIZE`")
	fs.StringVar(&f.hostname, "hostname", "", "host `NAME` in the session")
	fs.Var(durationValue(&f.idleTTL, ""), "idle-ttl", "end the session after `DURATION` without use")
	fs.Var(durationValue(&f.maxLifetime, ""), "max-lifetime", "end the session after `DURATION`, used or not")
	fs.BoolVar(&f.persistent, "persistent", false, "never end the session for idleness")
	fs.BoolVar(&f.noCreate, "no-create", false, "fail if there is no such session")
	completeSpec(cmd)
}

func completeSpec(cmd *cobra.Command) {
	values := map[string][]string{
		"profile":        {"default", "offline_readonly", "network_basic", "network_extended", "langbot"},
		"workspace-size": {"64M", "256M", "1G"}, "workspace-inodes": nil, "workspace-target": nil,
		"image":  {engine.HostImage + "\tthe host's system directories, read-only"},
		"memory": {"64M", "256M", "512M", "1G", "4G", unlimited}, "cpus": {"0.5", "1", "2", "4", unlimited}, "pids": {"32", "128", "512", unlimited},
		"tmp-size": {"16M", "64M", "256M"}, "upper-size": {"256M", "512M", "2G"},
		"idle-ttl": {"5m", "30m", "2h"}, "max-lifetime": {"1h", "24h"}, "hostname": nil,
	}
	for flag, list := range values {
		must(cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(list, cobra.ShellCompDirectiveNoFileComp|cobra.ShellCompDirectiveKeepOrder)))
	}
	must(cmd.MarkFlagDirname("workspace"))
	must(cmd.MarkFlagFilename("mount"))
}

// spec is what the flags ask for; nil if that is nothing.
func (f *specFlags) spec() (*apitypes.SessionSpec, error) {
	var s apitypes.SessionSpec
	asked := false
	for _, name := range specNames {
		if !f.given.Changed(name) {
			continue
		}
		asked = true
		if flag := f.given.Lookup(name); flag.Value.String() == "" {
			return nil, &engine.FieldError{Field: "--" + name, Value: `""`, Rule: "must not be empty; leave the flag out for the default"}
		}
		if err := f.set(&s, name); err != nil {
			return nil, err
		}
	}
	switch {
	case !asked:
		return nil, nil
	case f.noCreate:
		return nil, errors.New("--no-create: cannot be used together with flags that describe a session")
	}
	return &s, nil
}

// set copies the flag name, which was given, to s.
func (f *specFlags) set(s *apitypes.SessionSpec, name string) error {
	switch name {
	case "profile":
		s.Profile = f.profile
	case "image":
		s.Image = f.image
	case "hostname":
		s.Hostname = f.hostname
	case "network":
		s.Network = &f.network
	case "memory":
		s.Memory = (*apitypes.Size)(&f.memory)
	case "pids":
		s.PIDs = &f.pids
	case "cpus":
		s.CPUs = &f.cpus
	case "tmp-size":
		s.TmpSize = (*apitypes.Size)(&f.tmpSize)
	case "upper-size":
		s.UpperSize = (*apitypes.Size)(&f.upperSize)
	case "rw-rootfs":
		s.WritableRoot = &f.rwRootfs
	case "idle-ttl":
		s.IdleTTL = (*apitypes.Duration)(&f.idleTTL)
	case "max-lifetime":
		s.MaxLifetime = (*apitypes.Duration)(&f.maxLifetime)
	case "persistent":
		s.Persistent = &f.persistent
	case "workspace":
		return absolute(&s.Workspace, f.workspace, "--workspace")
	case "workspace-size":
		s.WorkspaceSize = (*apitypes.Size)(&f.workspaceSize)
	case "workspace-inodes":
		s.WorkspaceInodes = &f.workspaceInodes
	case "workspace-target":
		s.WorkspaceTarget = f.workspaceTarget
	case "mount":
		for _, m := range f.mounts {
			s.Mounts = append(s.Mounts, apitypes.Mount{Source: m.Source, Target: m.Target, ReadOnly: m.ReadOnly})
		}
	}
	return nil
}

// absolute makes path one that the daemon, in another directory, understands.
func absolute(dst *string, path, flag string) error {
	abs, err := filepath.Abs(path)
	if err != nil {
		return &engine.FieldError{Field: flag, Value: spec.Quote(path), Rule: "must be an absolute path"}
	}
	*dst = abs
	return nil
}

// inSession calls do with what the flags say about the session. With flags that
// say nothing an existing session is used as it is, and a missing one is made as
// the default profile has it.
func (f *specFlags) inSession(do func(spec *apitypes.SessionSpec) error) error {
	spec, err := f.spec()
	if err != nil {
		return err
	}
	err = do(spec)
	if spec == nil && !f.noCreate && client.IsCode(err, apitypes.CodeSessionNotFound) {
		return do(&apitypes.SessionSpec{})
	}
	return err
}
