package cli

import (
	"context"

	"github.com/spf13/cobra"
)

// Examine is a placeholder.
type Examine func(ctx context.Context) error

func (a *App) newDoctor() *cobra.Command { return &cobra.Command{Use: "doctor"} }
