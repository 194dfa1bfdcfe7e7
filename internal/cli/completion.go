package cli

import (
	"slices"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/spf13/cobra"
)

func (a *App) newCompletion() *cobra.Command {
	return &cobra.Command{
		Use:   "completion bash|zsh|fish",
		Short: "Print a shell completion script",
		Long: `Print a script that completes boxd's commands, flags and their values.

  bash   boxd completion bash > /etc/bash_completion.d/boxd
  zsh    boxd completion zsh > "${fpath[1]}/_boxd"
  fish   boxd completion fish > ~/.config/fish/completions/boxd.fish

For the running shell only: source <(boxd completion bash)
For bash, the package bash-completion is required.`,
		Args: func(cmd *cobra.Command, args []string) error {
			err := exactly("SHELL")(cmd, args)
			if err == nil && !slices.Contains(cmd.ValidArgs, args[0]) {
				err = &engine.FieldError{Field: "SHELL", Value: spec.Quote(args[0]), Rule: "must be bash, zsh or fish"}
			}
			return err
		},
		ValidArgs:             []string{"bash", "zsh", "fish"},
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			root, w := cmd.Root(), cmd.OutOrStdout()
			switch args[0] {
			case "bash":
				return root.GenBashCompletionV2(w, true)
			case "zsh":
				return root.GenZshCompletion(w)
			case "fish":
				return root.GenFishCompletion(w, true)
			default:
				return usageError(cmd, "no completion for "+spec.Quote(args[0]))
			}
		},
	}
}

// completeRun says what the flags of boxd run can be completed with. Behind the
// flags, the shell completes file names.
func completeRun(cmd *cobra.Command) {
	values := map[string][]string{
		"image":        {engine.HostImage + "\tthe host's system directories, read-only"},
		"timeout":      {"10s", "30s", "5m", "1h"},
		"grace":        {"500ms", "2s", "10s"},
		"output-limit": {"1M", "16M", "64M", unlimited},
		"user":         {"0:0", "1000:1000", "65534:65534"},
		"workdir":      {engine.WorkspaceTarget, "/tmp"},
	}
	for flag, list := range values {
		must(cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(list, cobra.ShellCompDirectiveNoFileComp|cobra.ShellCompDirectiveKeepOrder)))
	}
	must(cmd.RegisterFlagCompletionFunc("hostname", cobra.NoFileCompletions))
	must(cmd.RegisterFlagCompletionFunc("env", cobra.NoFileCompletions))
	must(cmd.MarkFlagDirname("workspace"))
	must(cmd.MarkFlagDirname("state-dir"))
	for _, flag := range []string{"env-file", "init", "mount"} {
		must(cmd.MarkFlagFilename(flag))
	}
}

// must stops on a mistake in this package, such as a flag that does not exist.
func must(err error) {
	if err != nil {
		panic(err)
	}
}
