package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/engine/spec"
	"github.com/spf13/cobra"
)

// labelsValue is the value of a repeatable flag KEY=VALUE.
type labelsValue struct {
	flag   string
	labels *spec.Labels
}

func (v labelsValue) Set(text string) error {
	key, value, found := strings.Cut(text, "=")
	if !found {
		return fmt.Errorf("must be KEY=VALUE")
	}
	if *v.labels == nil {
		*v.labels = spec.Labels{}
	}
	(*v.labels)[key] = value
	return v.labels.Validate(v.flag)
}

func (v labelsValue) String() string { return labelsText(*v.labels) }
func (v labelsValue) Type() string   { return "label" }

// labelsText is KEY=VALUE for each label, sorted.
func labelsText(l spec.Labels) string {
	var list []string
	for _, key := range slices.Sorted(maps.Keys(l)) {
		list = append(list, key+"="+l[key])
	}
	return strings.Join(list, ", ")
}

// registerLabelFilter adds the flag that selects what a list shows.
func registerLabelFilter(cmd *cobra.Command, labels *[]string) {
	cmd.Flags().StringArrayVarP(labels, "label", "l", nil, "only those with the label `KEY=VALUE`, or KEY with any value (repeatable)")
}

func (a *App) newSessionsLabel() *cobra.Command {
	var f remoteFlags
	cmd := &cobra.Command{
		Use:   "label SESSION LABEL... [flags]",
		Short: "Set and remove labels of a session",
		Long:  "Set labels of a session: KEY=VALUE sets one, KEY- removes one. Other labels stay.",
		Example: `  boxd sessions label lab team=vision owner=ada
  boxd sessions label lab owner-
  boxd sessions ls -l team=vision`,
		Args: exactly("SESSION", "LABEL..."),
		RunE: func(_ *cobra.Command, args []string) error {
			changes := map[string]*string{}
			for _, arg := range args[1:] {
				if key, value, found := strings.Cut(arg, "="); found {
					changes[key] = &value
				} else if key, found := strings.CutSuffix(arg, "-"); found {
					changes[key] = nil
				} else {
					return &spec.FieldError{Field: "LABEL", Value: spec.Quote(arg), Rule: "must be KEY=VALUE to set a label, or KEY- to remove it"}
				}
			}
			return a.remote(&f, func(ctx context.Context, c *client.Client) error {
				_, err := c.Update(ctx, args[0], apitypes.SessionUpdate{Labels: changes})
				return err
			})
		},
		ValidArgsFunction: a.completeNames(&f, listSessions),
	}
	f.register(cmd)
	return cmd
}

func (a *App) newSessionsRename() *cobra.Command {
	var f remoteFlags
	cmd := &cobra.Command{
		Use:   "rename SESSION NAME [flags]",
		Short: "Change the name of a session that is shown to people",
		Long: `Change the name of a session that is shown to people; an empty NAME removes it. The id stays:
workspace, box and the addresses of processes depend on it.`,
		Example: `  boxd sessions rename lab "Ada's experiments"`,
		Args:    exactly("SESSION", "NAME"),
		RunE: func(_ *cobra.Command, args []string) error {
			return a.remote(&f, func(ctx context.Context, c *client.Client) error {
				_, err := c.Update(ctx, args[0], apitypes.SessionUpdate{Name: &args[1]})
				return err
			})
		},
		ValidArgsFunction: a.completeNames(&f, listSessions),
	}
	f.register(cmd)
	return cmd
}
