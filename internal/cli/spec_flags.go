package cli

import (
	"errors"
	"path/filepath"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/engine/spec"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// specFlags describe the session that a command is for, if that has to be made.
// Those that boxd run has too mean the same.
type specFlags struct {
	given    *pflag.FlagSet
	wishes   spec.Wishes
	mounts   []spec.Mount
	noCreate bool
	names    []string // of the flags that say something about the session
}

func (f *specFlags) register(cmd *cobra.Command) {
	fs := cmd.Flags()
	f.given = fs
	wishes := pflag.NewFlagSet("", pflag.ContinueOnError)
	wishes.StringVar(&f.wishes.Profile, "profile", "", "`NAME` of the profile that supplies all other settings (default \"default\")")
	wishes.StringVar(&f.wishes.Image, "image", "", "root file system of the session: `IMAGE` \"host\" is the host's own system directories, read-only")
	wishes.StringVar(&f.wishes.Hostname, "hostname", "", "host `NAME` in the session")
	wishes.StringVar(&f.wishes.Workspace, "workspace", "", "mount the host's `DIR` at "+spec.WorkspaceTarget+" instead of a directory that boxd creates")
	wishes.StringVar(&f.wishes.WorkspaceTarget, "workspace-target", "", "mount the workspace at `PATH` instead of "+spec.WorkspaceTarget)
	wishes.StringVar(&f.wishes.Name, "name", "", "`NAME` of the session for people")
	wishes.Var(labelsValue{"--label", &f.wishes.Labels}, "label", "give the session the label `KEY=VALUE` (repeatable)")
	wishes.VarP(mountsValue(&f.mounts), "mount", "v", "mount `SRC:DST[:ro|rw]` or type=bind,source=SRC,target=DST[,readonly] (repeatable)")
	wishes.VisitAll(func(flag *pflag.Flag) { f.names = append(f.names, flag.Name) })
	fs.AddFlagSet(wishes)
	settingFlags(cmd, &f.wishes, false)
	for _, t := range spec.Table {
		if t.Flag != "" {
			f.names = append(f.names, t.Flag)
		}
	}
	fs.BoolVar(&f.noCreate, "no-create", false, "fail if there is no such session")

	profiles := []string{"default", "offline_readonly", "network_basic", "network_extended", "langbot"}
	must(cmd.RegisterFlagCompletionFunc("profile", cobra.FixedCompletions(profiles, cobra.ShellCompDirectiveNoFileComp|cobra.ShellCompDirectiveKeepOrder)))
	must(cmd.RegisterFlagCompletionFunc("image", cobra.FixedCompletions([]string{spec.HostImage + "\tthe host's system directories, read-only"}, cobra.ShellCompDirectiveNoFileComp)))
	must(cmd.RegisterFlagCompletionFunc("hostname", cobra.NoFileCompletions))
	must(cmd.RegisterFlagCompletionFunc("workspace-target", cobra.NoFileCompletions))
	must(cmd.MarkFlagDirname("workspace"))
	must(cmd.MarkFlagFilename("mount"))
}

// spec is what the flags ask for; nil if that is nothing.
func (f *specFlags) spec() (*apitypes.SessionSpec, error) {
	asked := false
	for _, name := range f.names {
		if !f.given.Changed(name) {
			continue
		}
		asked = true
		if f.given.Lookup(name).Value.String() == "" {
			return nil, &spec.FieldError{Field: "--" + name, Value: `""`, Rule: "must not be empty; leave the flag out for the default"}
		}
	}
	switch {
	case !asked:
		return nil, nil
	case f.noCreate:
		return nil, errors.New("--no-create: cannot be used together with flags that describe a session")
	}
	w := f.wishes
	if w.Workspace != "" { // the daemon is in another directory
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
