package cli

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
)

func (a *App) newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of boxd",
		Args:  exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), a.versionLine())
			return err
		},
	}
}

func (a *App) versionLine() string {
	return fmt.Sprintf("boxd %s %s %s/%s", a.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
