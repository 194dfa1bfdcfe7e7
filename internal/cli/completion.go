package cli

import (
	"context"
	"slices"
	"time"

	"github.com/boxd/boxd/client"
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
			}
			return root.GenFishCompletion(w, true)
		},
	}
}

// completeFlag has shells complete the value of a flag with values, in this order. Without
// values they complete nothing, not even file names.
func completeFlag(cmd *cobra.Command, flag string, values ...cobra.Completion) {
	must(cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp|cobra.ShellCompDirectiveKeepOrder)))
}

// completeFiles has shells complete the values of flags with file names.
func completeFiles(cmd *cobra.Command, flags ...string) {
	for _, flag := range flags {
		must(cmd.MarkFlagFilename(flag))
	}
}

// completeDirs has shells complete the values of flags with directories.
func completeDirs(cmd *cobra.Command, flags ...string) {
	for _, flag := range flags {
		must(cmd.MarkFlagDirname(flag))
	}
}

// must panics on a mistake in this package, such as a flag that does not exist.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// completionPatience bounds how long a shell waits for the daemon.
const completionPatience = time.Second

// lister asks the daemon for names that complete an argument. args are the arguments before it.
type lister func(ctx context.Context, c *client.Client, args []string) ([]cobra.Completion, error)

func listSessions(ctx context.Context, c *client.Client, _ []string) (names []cobra.Completion, err error) {
	sessions, err := c.Sessions(ctx)
	for _, s := range sessions {
		names = append(names, cobra.CompletionWithDesc(s.ID, stateText(s)))
	}
	return names, err
}

// listProcesses lists the processes of the session in args.
func listProcesses(ctx context.Context, c *client.Client, args []string) (names []cobra.Completion, err error) {
	processes, err := c.Processes(ctx, args[0])
	for _, p := range processes {
		names = append(names, cobra.CompletionWithDesc(p.ID, p.State))
	}
	return names, err
}

func listProfiles(ctx context.Context, c *client.Client, _ []string) (names []cobra.Completion, err error) {
	profiles, err := c.Profiles(ctx)
	for _, p := range profiles {
		names = append(names, p.Name)
	}
	return names, err
}

// listLanguages lists the languages of all profiles.
func listLanguages(ctx context.Context, c *client.Client, _ []string) (names []cobra.Completion, err error) {
	profiles, err := c.Profiles(ctx)
	for _, p := range profiles {
		for _, l := range p.Languages {
			if !slices.Contains(names, l.Name) {
				names = append(names, l.Name)
			}
		}
	}
	return names, err
}

// completeNames completes each argument with the names that its lister returns. If the daemon
// cannot be asked, nothing is completed.
func (a *App) completeNames(f *remoteFlags, listers ...lister) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) >= len(listers) {
			return nil, cobra.ShellCompDirectiveDefault
		}
		return a.askNames(f, listers[len(args)], args), cobra.ShellCompDirectiveNoFileComp
	}
}

func (a *App) askNames(f *remoteFlags, list lister, args []string) []cobra.Completion {
	c, err := a.newClient(f)
	if err != nil {
		return nil
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), completionPatience)
	defer cancel()
	names, _ := list(ctx, c, args) // a completion cannot report an error
	return names
}
