package daemon

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/images"
	"github.com/boxd/boxd/images/install"
)

// Images are collected soon after something was removed, together with what is removed meanwhile, and now and then: a
// box that used a layer may have ended, or the limits may have changed.
const (
	collectSoon  = 2 * time.Second
	collectEvery = 10 * time.Minute
)

// Times between two attempts to prefetch an image.
const (
	prefetchSoon  = time.Minute
	prefetchLater = time.Hour
)

// imageWork is what the daemon does with its store of images by itself.
type imageWork struct {
	store *images.Store // nil: the daemon keeps no images
	end   context.CancelFunc
	work  sync.WaitGroup

	mu     sync.Mutex
	failed map[string]string // why an image could not be prefetched, by reference; for the status
}

// openImages opens the store of images. Without one, the daemon has the image "host", and the status says why.
func (d *daemon) openImages(ctx context.Context) {
	err := d.openStore(ctx)
	if err != nil {
		d.warnings = append(d.warnings, "images are disabled, except for the image host: "+err.Error())
		d.log.Warn("images are disabled, except for the image host", "error", err)
	}
}

func (d *daemon) openStore(ctx context.Context) error {
	if _, err := d.service.Layers(ctx); err != nil {
		return err
	}
	c, disks := &d.Config.Images, []string{d.dirs.state}
	if data, err := d.dirs.volumes(); err == nil && d.ownLauncher {
		disks = append(disks, data)
	}
	registries := map[string]images.Registry{}
	for host, r := range c.Registries {
		registries[host] = images.Registry{Mirrors: r.Mirrors, Insecure: r.Insecure, LoginFile: r.LoginFile}
	}
	enough := func() error { return Room(disks, d.Config.Sessions.MinFree) }
	unpacker := install.New(install.Options{
		Create: func(ctx context.Context, s engine.Spec) (engine.Box, error) { return d.service.Create(ctx, s) },
		Layers: d.service, AllowDegraded: d.Config.Policy.AllowDegraded,
		Room: enough,
	})
	store, err := images.Open(filepath.Join(d.dirs.state, "images"), images.Options{
		Unpacker: unpacker, Layers: d.service, Registries: registries, Platform: c.Platform,
		MaxBytes: int64(c.MaxSize), TenantBytes: int64(c.TenantSize), Room: enough, Log: d.log,
	})
	d.images.store = store
	return err
}

// Room returns an error if less than minFree percent of one of the disks is free, in bytes or files. It leaves out a
// disk that it cannot ask: the disk of another user's launcher.
func Room(disks []string, minFree int) error {
	for _, dir := range disks {
		var st unix.Statfs_t
		if err := unix.Statfs(dir, &st); err != nil {
			continue
		}
		if least := st.Blocks / 100 * uint64(minFree); st.Bavail < least {
			return fmt.Errorf("only %s of the %s that must stay free (min_free) are left in %q: remove images (boxd image rm) or other files",
				spec.FormatSize(int64(st.Bavail)*st.Frsize), spec.FormatSize(int64(least)*st.Frsize), dir)
		}
		if least := st.Files / 100 * uint64(minFree); st.Ffree < least {
			return fmt.Errorf("only %d of the %d files that must stay free (min_free) are left in %q: remove images (boxd image rm) or other files", st.Ffree, least, dir)
		}
	}
	return nil
}

// startImages begins to prefetch and to collect images. Boxes that unpack them exist only after the recovery of
// sessions, which removes the boxes that belong to none.
func (d *daemon) startImages() {
	if d.images.store == nil {
		return
	}
	ctx, end := context.WithCancel(context.Background())
	d.images.end, d.images.failed = end, map[string]string{}
	d.images.work.Go(func() { d.prefetch(ctx, d.Config.Images.Prefetch) })
	d.images.work.Go(func() {
		for {
			got, err := d.images.store.GC(ctx)
			if err != nil && ctx.Err() == nil {
				d.log.Warn("collecting images", "error", err)
			}
			if got.Images+got.Layers > 0 {
				d.log.Info("collected images", "images", got.Images, "layers", got.Layers, "bytes", got.Bytes)
			}
			select {
			case <-time.After(collectEvery):
			case <-d.images.store.Garbage():
				pause(ctx, collectSoon)
			case <-ctx.Done():
			}
			if ctx.Err() != nil {
				return
			}
		}
	})
}

// prefetch pulls images for all tenants, one after the other. It tries again what fails, less and less often.
func (d *daemon) prefetch(ctx context.Context, references []string) {
	for wait := prefetchSoon; ; wait = min(2*wait, prefetchLater) {
		var failed []string
		for _, reference := range references {
			began := time.Now()
			img, err := d.images.store.Pull(ctx, images.Request{Reference: reference, Tenant: images.Shared})
			d.images.mu.Lock()
			if delete(d.images.failed, reference); err != nil {
				failed = append(failed, reference)
				d.images.failed[reference] = fmt.Sprintf("prefetching image %q: %v", reference, err)
			}
			d.images.mu.Unlock()
			switch {
			case ctx.Err() != nil:
				return
			case err != nil:
				d.log.Warn("prefetching an image", "image", reference, "error", err, "again_in", wait)
			default:
				d.log.Info("prefetched an image", "image", img.Name, "digest", img.Digest, "bytes", img.Bytes, "took", time.Since(began).Round(time.Millisecond))
			}
		}
		if references = failed; len(failed) == 0 || !pause(ctx, wait) {
			return
		}
	}
}

// pause waits for a time, or returns false at the end of ctx.
func pause(ctx context.Context, wait time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(wait):
		return true
	}
}

// statusWarnings returns what the status says that an operator should change.
func (d *daemon) statusWarnings() []string {
	d.images.mu.Lock()
	defer d.images.mu.Unlock()
	all := slices.Clone(d.warnings)
	for _, reference := range slices.Sorted(maps.Keys(d.images.failed)) {
		all = append(all, d.images.failed[reference])
	}
	return all
}

// close ends pulls, imports and collections, and closes the store.
func (w *imageWork) close() error {
	if w.end != nil {
		w.end()
		w.work.Wait()
	}
	if w.store == nil {
		return nil
	}
	return w.store.Close()
}

// netFiles are what resolving a name and checking a certificate reads below /etc, and what may be a symlink to
// elsewhere there: systemd-resolved's file, and those of certificates that crypto/x509 knows.
var netFiles = []string{"/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"}

// imageFiles are the files outside of the daemon's directories and /etc that pulling images, and the
// proxies of boxes, read.
func (d *daemon) imageFiles() (files []string) {
	for _, file := range netFiles {
		if real, err := filepath.EvalSymlinks(file); err == nil && filepath.Dir(real) != "/etc" {
			files = append(files, real)
		}
	}
	for _, r := range d.Config.Images.Registries {
		files = append(files, r.LoginFile)
	}
	files = append(files, d.Config.NetworkSecrets()...)
	return slices.DeleteFunc(files, func(file string) bool { return file == "" || file == os.DevNull })
}
