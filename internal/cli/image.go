package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/images"
	"github.com/spf13/cobra"
)

func (a *App) newImage() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "image",
		Aliases: []string{"images"},
		Short:   "Pull, import, list, verify and remove images",
		Long: `Pull, import, list, verify and remove images: root file systems of boxes.

A daemon keeps images for its sessions. Without a daemon, and with --local, the commands use
the images of this host, with which boxd run --image makes boxes; that needs root. A daemon is
used if one is named, or listens at ` + defaultSocket + `.

Layers are unpacked in a box of their own, without network.`,
	}
	cmd.AddCommand(a.newImagePull(), a.newImageImport(), a.newImageList(), a.newImageInspect(), a.newImageRemove(), a.newImageCollect(), a.newImageVerify())
	return cmd
}

func (a *App) newImagePull() *cobra.Command {
	var f imageFlags
	var r apitypes.ImagePull
	var loginFile string
	var insecure bool
	cmd := &cobra.Command{
		Use:   "pull REFERENCE [flags]",
		Short: "Pull an image from its registry",
		Long: `Pull an image from its registry, unless it is there already.

For this host's own images, the login is that of --login-file, or the one that docker login has
noted in ~/.docker/config.json. Credential helpers are not supported. A daemon has logins of
its own.`,
		Example: "  boxd image pull python:3.12\n  boxd image pull ghcr.io/acme/tool@sha256:… --login-file ~/.ghcr",
		Args:    exactly("REFERENCE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := refuseEmpty(cmd.Flags(), "platform", "login-file"); err != nil {
				return err
			}
			ref, err := spec.CheckReference("REFERENCE", args[0])
			if err != nil {
				return err
			}
			host := ref.Registry()
			f.registries = map[string]images.Registry{host: {Insecure: insecure}}
			return a.images(&f, false, func(ctx context.Context, s imageStore) error {
				var login string
				if _, local := s.(localImages); local {
					var err error
					if login, err = a.login(loginFile, host); err != nil {
						return err
					}
				} else if loginFile != "" || insecure {
					return errors.New("--login-file and --insecure: a daemon has registries of its own: set them in its configuration, or use --local")
				}
				r.Reference = args[0]
				img, err := s.pull(ctx, r, login, a.newLayerBars(f.quiet || f.json).show)
				return a.printAdded(&f, img, err)
			})
		},
	}
	cmd.Flags().StringVar(&r.Platform, "platform", "", "`OS/ARCH[/VARIANT]` instead of this host's, such as linux/arm64")
	cmd.Flags().BoolVar(&r.Always, "always", false, "ask the registry even if the image is there")
	cmd.Flags().StringVar(&loginFile, "login-file", "", "`FILE` whose first line is USER:PASSWORD")
	cmd.Flags().BoolVar(&insecure, "insecure", false, "allow plain HTTP, and any certificate")
	completeFlag(cmd, "platform", "linux/amd64", "linux/arm64")
	completeFiles(cmd, "login-file")
	f.registerShared(cmd)
	f.registerQuiet(cmd, "the name of the image")
	f.register(cmd)
	f.registerDegraded(cmd)
	return cmd
}

// printAdded prints an image that was pulled or imported.
func (a *App) printAdded(f *imageFlags, img apitypes.Image, err error) error {
	switch {
	case err != nil:
		return err
	case f.json:
		return writeJSON(a.Stdout, img)
	case f.quiet:
		_, err = fmt.Fprintln(a.Stdout, img.Name)
	default:
		_, err = fmt.Fprintf(a.Stdout, "%s %s %s, layers: %d, %s\n", printable(img.Name), img.Digest, printable(img.Platform), len(img.Layers), spec.FormatSize(img.Bytes))
	}
	return err
}

func (a *App) newImageImport() *cobra.Command {
	var f imageFlags
	var o client.ImportOptions
	cmd := &cobra.Command{
		Use:   "import FILE|DIR|- [flags]",
		Short: "Import an image from a file, a directory or stdin",
		Long: `Import an image: an OCI layout or a root file system, as a directory or a tar archive, or an
archive of docker save. A daemon takes archives only.

A root file system needs a name. Nothing in it says which platform it is for, so boxd takes
--platform, or this host's platform, as its label and does not check it.`,
		Example: "  skopeo copy docker://python:3.12 oci-archive:python.tar:python:3.12 && boxd image import python.tar\n" +
			"  mmdebstrap --variant=minbase --include=python3 trixie - | boxd image import - --name minimal",
		Args: exactly("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := refuseEmpty(cmd.Flags(), "name", "platform"); err != nil {
				return err
			}
			if o.Name != "" {
				if _, err := spec.CheckReference("--name", o.Name); err != nil {
					return err
				}
			}
			return a.images(&f, false, func(ctx context.Context, s imageStore) error {
				img, err := s.add(ctx, args[0], a.Stdin, o, a.newLayerBars(f.quiet || f.json).show)
				return a.printAdded(&f, img, err)
			})
		},
	}
	cmd.Flags().StringVar(&o.Name, "name", "", "`REFERENCE` that the image gets (default: the one in the archive)")
	cmd.Flags().StringVar(&o.Platform, "platform", "", "`OS/ARCH[/VARIANT]`, if the archive has several; of a root file system, only its label")
	completeFlag(cmd, "name")
	completeFlag(cmd, "platform", "linux/amd64", "linux/arm64")
	f.registerShared(cmd)
	f.registerQuiet(cmd, "the name of the image")
	f.register(cmd)
	f.registerDegraded(cmd)
	return cmd
}

func (a *App) newImageList() *cobra.Command {
	var f imageFlags
	cmd := &cobra.Command{
		Use:     "ls [flags]",
		Aliases: []string{"list"},
		Short:   "List images",
		Long: `List images: of a daemon those that the tenant can use, its own and the shared ones, which
have no tenant. USED says when a session last used the image. The images of this host have
neither column: there are no tenants, and boxd run does not record its use.`,
		Args: exactly(),
		RunE: func(*cobra.Command, []string) error {
			if f.tenant == "*" {
				return &engine.FieldError{Field: "--tenant", Value: `"*"`, Rule: "must be one tenant: there is no list of the images of all tenants"}
			}
			return a.images(&f, true, func(ctx context.Context, s imageStore) error {
				list, err := s.list(ctx)
				if err != nil {
					return err
				}
				doc := apitypes.ImageList{Images: orEmpty(list)}
				return printList(a, &f.formatFlags, doc, list, func(i apitypes.Image) string { return i.Name }, func(out screen) error {
					_, local := s.(localImages)
					header := []string{"IMAGE", "TENANT", "DIGEST", "PLATFORM", "SIZE", "AGE", "USED"}
					if local {
						header = []string{"IMAGE", "DIGEST", "PLATFORM", "SIZE", "AGE"}
					}
					t := newTable(out, header...)
					now := time.Now()
					for _, i := range list {
						_, digits, _ := strings.Cut(i.Digest, ":")
						digits = digits[:min(len(digits), 12)]
						if local {
							t.row(i.Name, digits, i.Platform, spec.FormatSize(i.Bytes), ago(now, i.Added))
						} else {
							t.row(i.Name, i.Tenant, digits, i.Platform, spec.FormatSize(i.Bytes), ago(now, i.Added), ago(now, i.Used))
						}
					}
					return t.flush()
				})
			})
		},
	}
	f.registerQuiet(cmd, "the names")
	f.registerFormat(cmd)
	f.register(cmd)
	return cmd
}

func (a *App) newImageInspect() *cobra.Command {
	var f imageFlags
	cmd := &cobra.Command{
		Use:     "inspect REFERENCE [flags]",
		Short:   "Print all details of an image, as JSON",
		Example: "  boxd image inspect python:3.12 --format '{{.digest}} {{join .entrypoint \" \"}}'",
		Args:    exactly("REFERENCE"),
		RunE: func(_ *cobra.Command, args []string) error {
			return a.images(&f, true, func(ctx context.Context, s imageStore) error {
				img, err := s.get(ctx, args[0])
				if err != nil {
					return err
				}
				return a.printOne(&f.formatFlags, img, func(out screen) error { return encodeJSON(out, img, "  ") })
			})
		},
		ValidArgsFunction: a.completeNames(&f.remoteFlags, listImages),
	}
	f.registerShared(cmd)
	f.registerFormat(cmd)
	f.register(cmd)
	return cmd
}

func (a *App) newImageRemove() *cobra.Command {
	var f imageFlags
	cmd := &cobra.Command{
		Use:     "rm REFERENCE... [flags]",
		Aliases: []string{"remove"},
		Short:   "Remove images",
		Long: `Remove references of images, by name, digest or the first 12 digits of one. If one cannot be
removed, boxd says why, removes the others, and exits with status 125.

Sessions that have the image keep it. Layers stay for the images and sessions that need them;
boxd image gc deletes the others. An image that all tenants share is removed with --shared.`,
		Example: "  boxd image rm python:3.12 ghcr.io/acme/tool:1\n  boxd image rm --shared local/base:1 && boxd image gc",
		Args:    exactly("REFERENCE..."),
		RunE: func(_ *cobra.Command, args []string) error {
			return a.images(&f, false, func(ctx context.Context, s imageStore) error {
				var failed []error
				for _, reference := range args {
					err := s.remove(ctx, reference)
					switch {
					case isRefused(err) || ctx.Err() != nil:
						return err // so would the others
					case err != nil:
						failed = append(failed, f.nameFlag(err)) // it names the image
					case f.json:
						if err := writeJSON(a.Stdout, map[string]string{"removed": reference}); err != nil {
							return err
						}
					}
				}
				return errors.Join(failed...)
			})
		},
		ValidArgsFunction: a.completeNames(&f.remoteFlags, listImages),
	}
	f.registerShared(cmd)
	f.register(cmd)
	return cmd
}

func (a *App) newImageCollect() *cobra.Command {
	var f imageFlags
	cmd := &cobra.Command{
		Use:   "gc [flags]",
		Short: "Delete layers and images that nothing needs",
		Long: `Delete layers that no image and no session needs, and then the images that were not used
longest, until the store is within its size. A daemon does that by itself, too.`,
		Args: exactly(),
		RunE: func(*cobra.Command, []string) error {
			return a.images(&f, false, func(ctx context.Context, s imageStore) error {
				got, err := s.collect(ctx)
				switch {
				case err != nil:
					return err
				case f.json:
					return writeJSON(a.Stdout, got)
				}
				_, err = fmt.Fprintf(a.Stdout, "deleted images: %d, layers: %d, %s\n", got.Images, got.Layers, spec.FormatSize(got.Bytes))
				return err
			})
		},
	}
	f.register(cmd)
	return cmd
}

func (a *App) newImageVerify() *cobra.Command {
	var f imageFlags
	var all bool
	cmd := &cobra.Command{
		Use:   "verify REFERENCE...|--all [flags]",
		Short: "Compare images on disk with what was pulled",
		Long: `Compare images on disk with what was pulled. A line on stdout says of each image whether it is
as it was; exit status 1 means that one is not.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if all == (len(args) > 0) {
				return usageError(cmd, "name the images to verify, or all of them with --all")
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			return a.images(&f, false, func(ctx context.Context, s imageStore) error { return a.verifyImages(ctx, &f, s, args) })
		},
		ValidArgsFunction: a.completeNames(&f.remoteFlags, listImages),
	}
	cmd.Flags().BoolVar(&all, "all", false, "verify every image")
	f.registerShared(cmd)
	f.register(cmd)
	f.registerDegraded(cmd)
	return cmd
}

// verifyImages verifies the images that names names, all if there are none.
func (a *App) verifyImages(ctx context.Context, f *imageFlags, s imageStore, names []string) error {
	if len(names) == 0 {
		list, err := s.list(ctx)
		if err != nil {
			return err
		}
		for _, img := range list {
			names = append(names, img.Name)
		}
	}
	status := 0
	for _, name := range names {
		err := s.verify(ctx, name)
		if err != nil && !isDamaged(err) {
			return err
		}
		row := verified{Image: name, OK: err == nil}
		if err != nil {
			status, row.Error = statusUnwell, err.Error()
		}
		if err := a.printOne(&f.formatFlags, row, func(out screen) error {
			state := "ok"
			if !row.OK {
				state = "no: " + row.Error
			}
			_, err := fmt.Fprintf(out, "%s: %s\n", printable(name), printable(state))
			return err
		}); err != nil {
			return err
		}
	}
	if status != 0 {
		return &statusError{status: status}
	}
	return nil
}

// isDamaged reports whether err means that an image is not what was pulled.
func isDamaged(err error) bool {
	return errors.Is(err, images.ErrCorrupt) || client.IsCode(err, apitypes.CodeImageDamaged)
}

// verified is a line of boxd image verify --json.
type verified struct {
	Image string `json:"image"`
	OK    bool   `json:"ok"`
	Error string `json:"error,omitempty"`
}

func listImages(ctx context.Context, c *client.Client, _ []string) (names []cobra.Completion, err error) {
	list, err := c.Images(ctx)
	for _, i := range list {
		names = append(names, i.Name)
	}
	return names, err
}
