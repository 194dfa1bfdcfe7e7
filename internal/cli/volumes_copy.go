package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/engine/spec"
	"github.com/spf13/cobra"
)

func (a *App) newVolumesExport() *cobra.Command {
	var f remoteFlags
	var profile string
	cmd := &cobra.Command{
		Use:   "export NAME [flags]",
		Short: "Write the content of a volume to stdout, as a tar stream",
		Long: `Write the content of a volume to stdout, as a tar stream. A session of its own reads it, so no
other session may have the volume read-write. Files that its user may not read are an error.

boxd cp SESSION:. - does the same with the workspace of a session.`,
		Example: "  boxd volumes export data > data.tar\n  boxd cp lab:. - > lab.tar",
		Args:    exactly("NAME"),
		RunE: func(_ *cobra.Command, args []string) error {
			if asTerminal(a.Stdout) != nil {
				return errors.New("stdout is a terminal: redirect the tar stream to a file")
			}
			return a.withVolume(&f, profile, args[0], true, func(ctx context.Context, c *client.Client, in place) error {
				return a.copyBetween(ctx, c, in, place{path: "-"}, false, false)
			})
		},
		ValidArgsFunction: a.completeNames(&f, listVolumes),
	}
	a.registerVolumeCopy(cmd, &f, &profile)
	return cmd
}

func (a *App) newVolumesImport() *cobra.Command {
	var f remoteFlags
	var profile string
	cmd := &cobra.Command{
		Use:   "import NAME [flags]",
		Short: "Unpack a tar stream from stdin into a volume",
		Long: `Unpack a tar stream from stdin into a volume, over its content. A session of its own writes
it, so no other session may have the volume. Owners are not kept.

boxd cp - SESSION:. does the same with the workspace of a session.`,
		Example: "  boxd volumes create data --size 1G\n  boxd volumes import data < data.tar",
		Args:    exactly("NAME"),
		RunE: func(_ *cobra.Command, args []string) error {
			return a.withVolume(&f, profile, args[0], false, func(ctx context.Context, c *client.Client, in place) error {
				return a.copyBetween(ctx, c, place{path: "-"}, in, false, f.json)
			})
		},
		ValidArgsFunction: a.completeNames(&f, listVolumes),
	}
	a.registerVolumeCopy(cmd, &f, &profile)
	return cmd
}

func (a *App) registerVolumeCopy(cmd *cobra.Command, f *remoteFlags, profile *string) {
	cmd.Flags().StringVar(profile, "profile", "", "`NAME` of the profile of the session that does it (default \"default\")")
	must(cmd.RegisterFlagCompletionFunc("profile", func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return a.askNames(f, listProfiles, nil), cobra.ShellCompDirectiveNoFileComp
	}))
	f.register(cmd)
}

// volumeDir is where a session that copies a volume has it.
const volumeDir = "/volume"

// withVolume calls do with the content of a volume in a session that lasts as long. If boxd
// dies meanwhile, the session's idle TTL ends it.
func (a *App) withVolume(f *remoteFlags, profile, name string, readOnly bool, do func(ctx context.Context, c *client.Client, in place) error) error {
	return a.remote(f, func(ctx context.Context, c *client.Client) (err error) {
		idle, retain := apitypes.Duration(time.Minute), spec.None
		ask := apitypes.SessionRequest{ID: "volume-" + strings.ToLower(rand.Text()[:16]), SessionSpec: apitypes.SessionSpec{
			Profile: profile, LiveWishes: apitypes.LiveWishes{IdleTTL: &idle, Retain: &retain},
			Volumes: []apitypes.SessionVolume{{Name: name, Target: volumeDir, ReadOnly: readOnly}},
		}}
		if _, err := c.Ensure(ctx, ask); err != nil {
			return err
		}
		defer func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
			defer cancel()
			err = errors.Join(err, c.Remove(ctx, ask.ID))
		}()
		return do(ctx, c, place{ask.ID, volumeDir + "/."})
	})
}
