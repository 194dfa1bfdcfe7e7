package cli

import (
	"fmt"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/oneshot"
	"github.com/spf13/cobra"
)

// commandFlags describe a command to run in a box, new or of a session.
type commandFlags struct {
	env, envFiles []string
	workdir       string
	mkdir, shell  bool
	user          *engine.User
}

// register declares the flags. workdir and user are the defaults that the help names.
func (f *commandFlags) register(cmd *cobra.Command, workdir, user string) {
	f.registerPlace(cmd, workdir, user)
	cmd.Flags().BoolVar(&f.shell, "shell", false, "run the single argument with sh -c")
}

// registerPlace declares the flags for the command's environment, directory and user.
func (f *commandFlags) registerPlace(cmd *cobra.Command, workdir, user string) {
	fs := cmd.Flags()
	fs.StringArrayVarP(&f.env, "env", "e", nil, "set `KEY=VALUE`, or pass KEY from the caller's environment (repeatable)")
	fs.StringArrayVar(&f.envFiles, "env-file", nil, "read variables from `FILE`, one KEY=VALUE or KEY per line (repeatable)")
	fs.StringVarP(&f.workdir, "workdir", "w", "", "working directory in the box: `DIR` (default: "+workdir+")")
	fs.BoolVar(&f.mkdir, "mkdir", false, "create the working directory if it is missing")
	fs.VarP(userValue(&f.user), "user", "u", "user and group in the box: `UID[:GID]`, 0 to 65534; GID defaults to UID (default: "+user+")")
	completeFlag(cmd, "env")
	completeFiles(cmd, "env-file")
	completeFlag(cmd, "workdir", engine.WorkspaceTarget, "/tmp")
	completeFlag(cmd, "user", "0:0", "1000:1000", "65534:65534")
}

// argv returns the program to execute and its arguments.
func (f *commandFlags) argv(args []string) ([]string, error) {
	if !f.shell {
		return args, nil
	}
	if len(args) != 1 {
		return nil, &engine.FieldError{Field: "--shell", Value: fmt.Sprintf("with %d arguments", len(args)), Rule: "takes a single one, the script; quote it"}
	}
	return []string{"sh", "-c", args[0]}, nil
}

// environ returns the environment in the form of the API.
func (a *App) environ(f *commandFlags) (map[string]string, error) {
	list, err := a.environment(f.envFiles, f.env)
	if err != nil || len(list) == 0 {
		return nil, err
	}
	return oneshot.Env(list), nil
}
