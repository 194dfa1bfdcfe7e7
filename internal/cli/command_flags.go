package cli

import (
	"fmt"
	"strings"

	"github.com/boxd/boxd/engine"
	"github.com/spf13/cobra"
)

// commandFlags describe a command in a session. They mean what they mean for boxd
// run.
type commandFlags struct {
	env, envFiles []string
	workdir       string
	mkdir, shell  bool
	user          *engine.User
}

func (f *commandFlags) register(cmd *cobra.Command) {
	f.registerPlace(cmd)
	cmd.Flags().BoolVar(&f.shell, "shell", false, "run the single argument with sh -c")
}

// registerPlace declares those that say where and as whom it runs.
func (f *commandFlags) registerPlace(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringArrayVarP(&f.env, "env", "e", nil, "set `KEY=VALUE`, or pass KEY from the caller's environment (repeatable)")
	fs.StringArrayVar(&f.envFiles, "env-file", nil, "read variables from `FILE`, one KEY=VALUE or KEY per line (repeatable)")
	fs.StringVarP(&f.workdir, "workdir", "w", "", "working directory in the box: `DIR` (default: the workspace)")
	fs.BoolVar(&f.mkdir, "mkdir", false, "create the working directory if it is missing")
	fs.VarP(userValue(&f.user), "user", "u", "user and group in the box: `UID[:GID]`, 0 to 65534; GID defaults to UID (default: the session's)")
	must(cmd.RegisterFlagCompletionFunc("env", cobra.NoFileCompletions))
	must(cmd.MarkFlagFilename("env-file"))
	must(cmd.RegisterFlagCompletionFunc("user", cobra.FixedCompletions([]string{"0:0", "1000:1000", "65534:65534"}, cobra.ShellCompDirectiveNoFileComp)))
}

// argv is what to execute.
func (f *commandFlags) argv(args []string) ([]string, error) {
	if !f.shell {
		return args, nil
	}
	if len(args) != 1 {
		return nil, &engine.FieldError{Field: "--shell", Value: fmt.Sprintf("with %d arguments", len(args)), Rule: "takes a single one, the script; quote it"}
	}
	return []string{"sh", "-c", args[0]}, nil
}

// environ is the environment as the API has it.
func (a *App) environ(f *commandFlags) (map[string]string, error) {
	list, err := a.environment(f.envFiles, f.env)
	if err != nil || len(list) == 0 {
		return nil, err
	}
	env := make(map[string]string, len(list))
	for _, kv := range list {
		name, value, _ := strings.Cut(kv, "=")
		env[name] = value
	}
	return env, nil
}
