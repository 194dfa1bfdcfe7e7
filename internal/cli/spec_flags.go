package cli

import (
	"errors"
	"path/filepath"
	"slices"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/engine/spec"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// specFlags describe the session that a command runs in. A flag that boxd run has too means the
// same here.
type specFlags struct {
	given    *pflag.FlagSet
	wishes   spec.Wishes
	mounts   []spec.Mount
	noCreate bool
	names    []string // of all flags but --no-create
}

// register declares the flags. The daemon of remote completes names of profiles.
func (f *specFlags) register(a *App, cmd *cobra.Command, remote *remoteFlags) {
	fs := cmd.Flags()
	f.given = fs
	wishes := pflag.NewFlagSet("", pflag.ContinueOnError)
	wishes.StringVar(&f.wishes.Profile, "profile", "", "`NAME` of the profile that supplies all other settings (default \"default\")")
	wishes.StringVar(&f.wishes.Hostname, "hostname", "", "host `NAME` in the session")
	wishes.StringVar(&f.wishes.Workspace, "workspace", "", "mount the host's `DIR` at "+spec.WorkspaceTarget+" instead of a directory that boxd creates")
	wishes.StringVar(&f.wishes.WorkspaceTarget, "workspace-target", "", "mount the workspace at `PATH` instead of "+spec.WorkspaceTarget)
	wishes.StringVar(&f.wishes.Name, "name", "", "`NAME` of the session for people")
	wishes.Var(labelsValue{"--label", &f.wishes.Labels}, "label", "give the session the label `KEY=VALUE` (repeatable)")
	wishes.VarP(mountsValue(&f.mounts), "mount", "v", "mount `SRC:DST[:ro|rw]` or type=bind,source=SRC,target=DST[,readonly] (repeatable)")
	wishes.Var(&textValue{"", func(s string) error {
		v, err := parseVolume(s)
		f.wishes.Volumes = append(f.wishes.Volumes, v)
		return err
	}}, "volume", "attach the volume `NAME:TARGET[:ro,size=SIZE]`; with a size it is created if it does not exist (repeatable)")
	registerRules(wishes, &f.wishes.NetworkRules, "with --network: ")
	wishes.Var(publishValue(&f.wishes.Publish), "publish", "make TCP port PORT of the box a port of the host, of the daemon's pool: `[HOST:]PORT`; boxd start names a chosen one on stderr, boxd ports shows all (repeatable)")
	wishes.VisitAll(func(flag *pflag.Flag) { f.names = append(f.names, flag.Name) })
	fs.AddFlagSet(wishes)
	settingFlags(cmd, &f.wishes, false)
	for _, t := range spec.Table {
		if t.Flag != "" {
			f.names = append(f.names, t.Flag)
		}
	}
	fs.BoolVar(&f.noCreate, "no-create", false, "fail if there is no such session")

	must(cmd.RegisterFlagCompletionFunc("profile", func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return a.askNames(remote, listProfiles, nil), cobra.ShellCompDirectiveNoFileComp
	}))
	completeFlag(cmd, "hostname")
	completeFlag(cmd, "workspace-target")
	completeDirs(cmd, "workspace")
	completeFiles(cmd, "mount")
	completeFlag(cmd, "volume")
	completeRules(cmd)
	completeFlag(cmd, "publish")
}

// spec returns the session that the flags describe, nil if none of them was given.
func (f *specFlags) spec() (*apitypes.SessionSpec, error) {
	if !slices.ContainsFunc(f.names, f.given.Changed) {
		return nil, nil
	}
	if err := refuseEmpty(f.given, f.names...); err != nil {
		return nil, err
	}
	if f.noCreate {
		return nil, errors.New("--no-create: cannot be used together with flags that describe a session")
	}
	w := f.wishes
	if w.Workspace != "" { // the daemon has another working directory
		var err error
		if w.Workspace, err = filepath.Abs(w.Workspace); err != nil {
			return nil, &spec.FieldError{Field: "--workspace", Value: spec.Quote(f.wishes.Workspace), Rule: "must be an absolute path"}
		}
	}
	for _, m := range f.mounts {
		w.Mounts = append(w.Mounts, spec.MountWish{Source: m.Source, Target: m.Target, ReadOnly: m.ReadOnly})
	}
	return &w, nil
}

// inSession calls do with the session that the flags describe. If they describe none, do uses
// an existing session as it is; a missing one is created with the default profile.
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
