package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/images"
	"github.com/spf13/cobra"
)

// imageStore keeps images: that of a daemon, or that of this host, which boxd run uses.
type imageStore interface {
	list(ctx context.Context) ([]apitypes.Image, error)
	get(ctx context.Context, reference string) (apitypes.Image, error)
	// pull uses login, "user:password", unless the store is a daemon's.
	pull(ctx context.Context, r apitypes.ImagePull, login string, progress func(apitypes.ImageProgress)) (apitypes.Image, error)
	// add imports the file or directory at path, or what stdin has if path is "-".
	add(ctx context.Context, path string, stdin io.Reader, o client.ImportOptions, progress func(apitypes.ImageProgress)) (apitypes.Image, error)
	remove(ctx context.Context, reference string) error
	verify(ctx context.Context, reference string) error
	collect(ctx context.Context) (apitypes.ImagesCollected, error)
}

// daemonImages are the images of a daemon.
type daemonImages struct {
	c      *client.Client
	shared bool
}

func (d daemonImages) name(reference string) apitypes.ImageName {
	return apitypes.ImageName{Reference: reference, Shared: d.shared}
}

func (d daemonImages) list(ctx context.Context) ([]apitypes.Image, error) { return d.c.Images(ctx) }

func (d daemonImages) get(ctx context.Context, reference string) (apitypes.Image, error) {
	return d.c.Image(ctx, d.name(reference))
}

func (d daemonImages) pull(ctx context.Context, r apitypes.ImagePull, _ string, progress func(apitypes.ImageProgress)) (apitypes.Image, error) {
	r.Shared = d.shared
	return d.c.PullImage(ctx, r, progress)
}

func (d daemonImages) add(ctx context.Context, path string, stdin io.Reader, o client.ImportOptions, progress func(apitypes.ImageProgress)) (apitypes.Image, error) {
	o.Shared, o.Progress = d.shared, progress
	if path == "-" {
		return d.c.ImportImage(ctx, stdin, o)
	}
	f, err := os.Open(path)
	if err != nil {
		return apitypes.Image{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return apitypes.Image{}, err
	}
	if info.IsDir() {
		return apitypes.Image{}, fmt.Errorf("%s is a directory, and a daemon takes archives: tar -C %s -c . | boxd image import - --name NAME; or use --local", spec.Quote(path), path)
	}
	return d.c.ImportImage(ctx, &uploadReader{f, apitypes.ImageProgress{Step: "upload", Total: info.Size()}, progress}, o)
}

// uploadReader tells progress what was read of a file.
type uploadReader struct {
	r    io.Reader
	at   apitypes.ImageProgress
	tell func(apitypes.ImageProgress)
}

func (u *uploadReader) Read(b []byte) (int, error) {
	n, err := u.r.Read(b)
	u.at.Done += int64(n)
	u.tell(u.at)
	return n, err
}

func (d daemonImages) remove(ctx context.Context, reference string) error {
	return d.c.RemoveImage(ctx, d.name(reference))
}

func (d daemonImages) verify(ctx context.Context, reference string) error {
	return d.c.VerifyImage(ctx, d.name(reference))
}

func (d daemonImages) collect(ctx context.Context) (apitypes.ImagesCollected, error) {
	return d.c.CollectImages(ctx)
}

// localImages are the images of this host. All of them are shared: there are no tenants.
type localImages struct{ s *images.Store }

func (l localImages) list(context.Context) ([]apitypes.Image, error) {
	found, err := l.s.List(images.Shared)
	list := make([]apitypes.Image, len(found))
	for i := range found {
		list[i], _ = imageOf(found[i], nil)
	}
	return list, err
}

func (l localImages) get(_ context.Context, reference string) (apitypes.Image, error) {
	return imageOf(l.s.Get(images.Shared, reference))
}

func (l localImages) pull(ctx context.Context, r apitypes.ImagePull, login string, progress func(apitypes.ImageProgress)) (apitypes.Image, error) {
	return imageOf(l.s.Pull(ctx, images.Request{Reference: r.Reference, Platform: r.Platform, Always: r.Always, Login: login,
		Progress: func(p images.Progress) { progress(apitypes.ImageProgress(p)) }}))
}

func (l localImages) add(ctx context.Context, path string, stdin io.Reader, o client.ImportOptions, progress func(apitypes.ImageProgress)) (apitypes.Image, error) {
	r := images.Request{Reference: o.Name, Platform: o.Platform, Progress: func(p images.Progress) { progress(apitypes.ImageProgress(p)) }}
	if path == "-" {
		return imageOf(l.s.ImportStream(ctx, stdin, r))
	}
	return imageOf(l.s.Import(ctx, path, r))
}

func (l localImages) remove(ctx context.Context, reference string) error {
	return l.s.Remove(ctx, images.Shared, reference)
}

func (l localImages) verify(ctx context.Context, reference string) error {
	return l.s.Verify(ctx, images.Shared, reference)
}

func (l localImages) collect(ctx context.Context) (apitypes.ImagesCollected, error) {
	got, err := l.s.GC(ctx)
	return apitypes.ImagesCollected(got), err
}

func imageOf(img images.Image, err error) (apitypes.Image, error) {
	var out apitypes.Image
	spec.CopyFields(&out, img)
	out.Layers = orEmpty(out.Layers)
	return out, err
}

// defaultDataDir is where boxd keeps the images of this host, apart from those of a daemon.
const defaultDataDir = "/var/lib/boxd/local"

// dataDir returns the directory of --data-dir, of BOXD_DATA_DIR, or the default.
func (a *App) dataDir(flag string) string {
	return cmp.Or(a.env(flag, "BOXD_DATA_DIR"), defaultDataDir)
}

func registerDataDir(cmd *cobra.Command, dataDir *string) {
	cmd.Flags().StringVar(dataDir, "data-dir", "", "`DIR` with the images of this host (default: $BOXD_DATA_DIR, or "+defaultDataDir+")")
	completeDirs(cmd, "data-dir")
}

// ImagesDir is the directory of the store of images below a data directory. Its layers are the engine's.
func ImagesDir(dataDir string) string { return filepath.Join(dataDir, "store") }

// imageFlags say where the images are.
type imageFlags struct {
	remoteFlags
	local, shared, degraded     bool
	dataDir, initPath, stateDir string
	registries                  map[string]images.Registry // by host, for the images of this host
}

func (f *imageFlags) register(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.local, "local", false, "use the images of this host, as boxd run does, even if a daemon runs")
	registerDataDir(cmd, &f.dataDir)
	registerEngine(cmd, &f.initPath, &f.stateDir)
	f.remoteFlags.register(cmd)
}

// registerDegraded declares --allow-degraded, for commands that read layers in boxes.
func (f *imageFlags) registerDegraded(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.degraded, "allow-degraded", false, "for this host's images: continue if the host cannot enforce a limit of the boxes that unpack")
}

// registerShared declares --shared, for commands that name images.
func (f *imageFlags) registerShared(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.shared, "shared", false, "the image that a daemon shares between all tenants")
}

// images calls do with the daemon's store of images if a daemon is named or listens at the default socket, and
// otherwise with the store of this host. If readOnly is set, do only lists and inspects.
func (a *App) images(f *imageFlags, readOnly bool, do func(ctx context.Context, s imageStore) error) error {
	named := cmp.Or(f.socket, f.url)
	if (f.local || f.dataDir != "") && cmp.Or(named, f.tenant) != "" {
		return &engine.FieldError{Field: "--local", Value: "or --data-dir", Rule: "cannot be used together with flags that name a daemon"}
	}
	if !f.local && f.dataDir == "" {
		_, missing := os.Stat(defaultSocket)
		if cmp.Or(named, a.env("", "BOXD_SOCKET"), a.env("", "BOXD_URL")) != "" || missing == nil {
			return a.remote(&f.remoteFlags, func(ctx context.Context, c *client.Client) error {
				return do(ctx, daemonImages{c, f.shared})
			})
		}
	}
	if f.shared {
		return &engine.FieldError{Field: "--shared", Value: "without a daemon", Rule: "has no meaning, because images of this host have no tenants: leave it out, or name a daemon with --socket or --url"}
	}
	if err := f.checkFormat(); err != nil {
		return err
	}
	o := EngineOptions{StateDir: a.stateDir(f.stateDir), DataDir: a.dataDir(f.dataDir), AllowDegraded: f.degraded}
	signals := a.watchSignals()
	err := a.localImages(signals.Context, o, f.initPath, f.registries, readOnly, func(s *images.Store) error { return do(signals.Context, localImages{s}) })
	signals.Stop()
	if sig := signals.Received(); sig != 0 && err != nil {
		return stoppedBy(sig)
	}
	return f.nameFlag(err)
}

// localImages calls do with the store of images of this host.
func (a *App) localImages(ctx context.Context, o EngineOptions, initPath string, registries map[string]images.Registry, readOnly bool, do func(*images.Store) error) (err error) {
	var s *images.Store
	done := func() error { return s.Close() }
	if readOnly {
		s = images.OpenReadOnly(ImagesDir(o.DataDir))
	} else if o.InitPath, err = a.initPath(initPath); err == nil {
		s, done, err = a.OpenImages(ctx, o, registries)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done()) }()
	return do(s)
}
