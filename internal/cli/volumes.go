package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/spf13/cobra"
)

func (a *App) newVolumes() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "volumes",
		Short: "Create, list, resize, mark, attach, copy and remove volumes",
		Long: `Create, list, resize, mark, attach, copy and remove volumes of the daemon.

A volume is a directory of limited size that outlives sessions. Several sessions can have it
read-only, or one can have it read-write. boxd exec and boxd start attach it with --volume.`,
	}
	cmd.AddCommand(a.newVolumesList(), a.newVolumesCreate(), a.newVolumesSnapshot(), a.newVolumesResize(), a.newVolumesSensitive(), a.newVolumesRemove(), a.newVolumesAttach(), a.newVolumesDetach(),
		a.newVolumesExport(), a.newVolumesImport())
	return cmd
}

func (a *App) newVolumesList() *cobra.Command {
	var f remoteFlags
	cmd := &cobra.Command{
		Use:     "ls [flags]",
		Aliases: []string{"list"},
		Short:   "List volumes",
		Args:    exactly(),
		RunE: func(*cobra.Command, []string) error {
			return a.remote(&f, func(ctx context.Context, c *client.Client) error {
				list, err := c.Volumes(ctx)
				if err != nil {
					return err
				}
				doc := apitypes.VolumeList{Volumes: orEmpty(list)}
				return printList(a, &f.formatFlags, doc, list, func(v apitypes.Volume) string { return v.Name }, func(out screen) error {
					return writeVolumes(out, list)
				})
			})
		},
	}
	f.registerQuiet(cmd, "the names")
	f.registerFormat(cmd)
	f.register(cmd)
	return cmd
}

func writeVolumes(w screen, list []apitypes.Volume) error {
	t := newTable(w, "VOLUME", "TENANT", "STATE", "SIZE", "USED", "SESSIONS", "SENSITIVE")
	for _, v := range list {
		var sessions []string
		for _, s := range v.Attached {
			sessions = append(sessions, s.Session+map[bool]string{true: " (ro)", false: " (rw)"}[s.ReadOnly])
		}
		t.row(v.Name, v.Tenant, v.State, spec.FormatSize(int64(v.Size)), spec.FormatSize(v.UsedBytes), strings.Join(sessions, ", "), yes(v.Sensitive))
	}
	return t.flush()
}

func (a *App) newVolumesCreate() *cobra.Command {
	var f remoteFlags
	var size, inodes int64
	var sensitive bool
	cmd := &cobra.Command{
		Use:     "create NAME --size SIZE [flags]",
		Short:   "Create a volume",
		Long:    "Create a volume, unless it exists with the same size.",
		Example: "  boxd volumes create data --size 1G\n  boxd exec lab --volume data:/data -- touch /data/file",
		Args:    exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !cmd.Flags().Changed("size") {
				return usageError(cmd, "--size SIZE is missing: the hard limit of the volume, such as 1G")
			}
			return a.remote(&f, func(ctx context.Context, c *client.Client) error {
				v, err := c.CreateVolume(ctx, apitypes.VolumeRequest{Name: args[0], Size: apitypes.Size(size), Inodes: inodes, Sensitive: sensitive})
				if err == nil && f.json {
					err = writeJSON(a.Stdout, v)
				}
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&sensitive, "sensitive", false, "mark the volume as sensitive: sessions that have it have no network, for good")
	registerVolumeLimits(cmd, &size, &inodes)
	f.register(cmd)
	return cmd
}

func (a *App) newVolumesSnapshot() *cobra.Command {
	var f remoteFlags
	var size int64
	cmd := &cobra.Command{
		Use:   "snapshot NAME NEW [flags]",
		Short: "Create a volume with the content of another",
		Long: `Create the volume NEW with the content that the volume NAME has now. From then on both are on
their own. No session may have NAME read-write; sessions can have it read-only meanwhile.

The copy shares its blocks with NAME if the file system of the daemon's volumes can do that
(XFS, btrfs); otherwise everything that is in NAME is copied. ^C leaves nothing behind. Where
volumes are directories with a project quota, use export and import.`,
		Example: "  boxd volumes snapshot data before-upgrade",
		Args:    exactly("NAME", "NEW"),
		RunE: func(_ *cobra.Command, args []string) error {
			return a.remote(&f, func(ctx context.Context, c *client.Client) error {
				v, err := c.CreateVolume(ctx, apitypes.VolumeRequest{Name: args[1], From: args[0], Size: apitypes.Size(size)})
				if err == nil && f.json {
					err = writeJSON(a.Stdout, v)
				}
				return err
			})
		},
		ValidArgsFunction: a.completeNames(&f, listVolumes),
	}
	cmd.Flags().Var(sizeValue(&size, "", false), "size", "hard limit of the new volume: `SIZE` (default: the limit of NAME)")
	completeFlag(cmd, "size", "64M", "256M", "1G")
	f.register(cmd)
	return cmd
}

// registerVolumeLimits declares the flags for the limits of a volume.
func registerVolumeLimits(cmd *cobra.Command, size, inodes *int64) {
	cmd.Flags().Var(sizeValue(size, "", false), "size", "hard limit of the volume: `SIZE` from 1M")
	cmd.Flags().Int64Var(inodes, "inodes", 0, "files and directories in it: `N` (default: one for each 16K)")
	completeFlag(cmd, "size", "64M", "256M", "1G")
	completeFlag(cmd, "inodes")
}

func (a *App) newVolumesResize() *cobra.Command {
	var f remoteFlags
	var size, inodes int64
	cmd := &cobra.Command{
		Use:   "resize NAME --size SIZE [flags]",
		Short: "Change the size of a volume",
		Long: `Change the size of a volume, also while sessions have it. It can shrink to what it holds if
the daemon's data directory has project quota; otherwise it can only grow, on some hosts only
while no session has it.`,
		Args: exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !cmd.Flags().Changed("size") {
				return usageError(cmd, "--size SIZE is missing: the hard limit of the volume, such as 1G")
			}
			return a.remote(&f, func(ctx context.Context, c *client.Client) error {
				v, err := c.ResizeVolume(ctx, args[0], apitypes.VolumeUpdate{Size: apitypes.Size(size), Inodes: inodes})
				if err == nil && f.json {
					err = writeJSON(a.Stdout, v)
				}
				return err
			})
		},
		ValidArgsFunction: a.completeNames(&f, listVolumes),
	}
	registerVolumeLimits(cmd, &size, &inodes)
	f.register(cmd)
	return cmd
}

func (a *App) newVolumesSensitive() *cobra.Command {
	var f remoteFlags
	cmd := &cobra.Command{
		Use:   "sensitive NAME [flags]",
		Short: "Mark a volume as sensitive, for good",
		Long: `Mark a volume as sensitive. Sessions that have it, now or later, have no network from then
on, even after it is detached. Only removing the volume takes the mark off.`,
		Args: exactly("NAME"),
		RunE: func(_ *cobra.Command, args []string) error {
			return a.remote(&f, func(ctx context.Context, c *client.Client) error {
				v, err := c.MarkVolume(ctx, args[0])
				if err == nil && f.json {
					err = writeJSON(a.Stdout, v)
				}
				return err
			})
		},
		ValidArgsFunction: a.completeNames(&f, listVolumes),
	}
	f.register(cmd)
	return cmd
}

func (a *App) newVolumesRemove() *cobra.Command {
	var f remoteFlags
	cmd := &cobra.Command{
		Use:     "rm NAME... [flags]",
		Aliases: []string{"remove"},
		Short:   "Remove volumes with all that is in them",
		Long:    "Remove volumes with all that is in them. A volume that a session has is not removed.",
		Args:    exactly("NAME..."),
		RunE: func(_ *cobra.Command, args []string) error {
			return a.remote(&f, func(ctx context.Context, c *client.Client) error {
				for _, name := range args {
					if err := c.RemoveVolume(ctx, name); err != nil {
						return err // it names the volume
					}
					if f.json {
						if err := writeJSON(a.Stdout, map[string]string{"removed": name}); err != nil {
							return err
						}
					}
				}
				return nil
			})
		},
		ValidArgsFunction: a.completeNames(&f, listVolumes),
	}
	f.register(cmd)
	return cmd
}

func (a *App) newVolumesAttach() *cobra.Command {
	var f remoteFlags
	cmd := &cobra.Command{
		Use:     "attach SESSION NAME:TARGET[:ro] [flags]",
		Short:   "Attach a volume to a session, live",
		Example: "  boxd volumes attach lab data:/data:ro",
		Args:    exactly("SESSION", "VOLUME"),
		RunE: func(_ *cobra.Command, args []string) error {
			v, err := parseVolume(args[1])
			if err != nil {
				return err
			}
			return a.remote(&f, func(ctx context.Context, c *client.Client) error {
				_, err := c.Update(ctx, args[0], apitypes.SessionUpdate{AttachVolumes: []apitypes.SessionVolume{v}})
				return err
			})
		},
		ValidArgsFunction: a.completeNames(&f, listSessions, listVolumes),
	}
	f.register(cmd)
	return cmd
}

func (a *App) newVolumesDetach() *cobra.Command {
	var f remoteFlags
	cmd := &cobra.Command{
		Use:   "detach SESSION NAME [flags]",
		Short: "Detach a volume from a session, live",
		Args:  exactly("SESSION", "NAME"),
		RunE: func(_ *cobra.Command, args []string) error {
			return a.remote(&f, func(ctx context.Context, c *client.Client) error {
				s, err := c.Session(ctx, args[0])
				if err != nil {
					return err
				}
				for _, v := range s.Volumes {
					if v.Name == args[1] {
						_, err := c.Update(ctx, args[0], apitypes.SessionUpdate{Detach: []string{v.Target}})
						return err
					}
				}
				return fmt.Errorf("volume %s: session %s does not have it", spec.Quote(args[1]), spec.Quote(args[0]))
			})
		},
		ValidArgsFunction: a.completeNames(&f, listSessions, listVolumes),
	}
	f.register(cmd)
	return cmd
}

func listVolumes(ctx context.Context, c *client.Client, _ []string) (names []cobra.Completion, err error) {
	volumes, err := c.Volumes(ctx)
	for _, v := range volumes {
		names = append(names, v.Name)
	}
	return names, err
}

// parseVolume reads NAME:TARGET[:OPTION[,OPTION]], where an option is ro, rw or size=SIZE.
func parseVolume(s string) (v apitypes.SessionVolume, err error) {
	refuse := func(rule string) (apitypes.SessionVolume, error) {
		return apitypes.SessionVolume{}, &engine.FieldError{Field: "VOLUME", Value: spec.Quote(s), Rule: rule}
	}
	fields := strings.Split(s, ":")
	if len(fields) < 2 || len(fields) > 3 || fields[0] == "" || fields[1] == "" {
		return refuse("must be NAME:TARGET with optional options, such as data:/data:ro")
	}
	v.Name, v.Target = fields[0], fields[1]
	if strings.Contains(v.Target, ",size=") {
		return refuse("has options behind a comma: write NAME:TARGET:size=1G, or NAME:TARGET:ro,size=1G")
	}
	if len(fields) == 2 {
		return v, nil
	}
	for option := range strings.SplitSeq(fields[2], ",") {
		size, isSize := strings.CutPrefix(option, "size=")
		switch {
		case option == "ro", option == "rw":
			v.ReadOnly = option == "ro"
		case isSize:
			n, err := spec.ParseSize(size)
			if err != nil {
				return v, err
			}
			v.Size = apitypes.Size(n)
		default:
			return refuse("has the option " + spec.Quote(option) + ": must be ro, rw or size=SIZE")
		}
	}
	return v, nil
}
