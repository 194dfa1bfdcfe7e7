package images

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/boxd/boxd/engine/spec"
)

// Pull fetches an image from its registry, unless the store has it already: for the tenant or for all.
//
// A layer that the tenant has in another image, or that is shared, is not fetched again if it was made from the same
// blob. A layer that only other tenants have is fetched and unpacked again, because that proves that the tenant can read
// it, and then is kept once.
func (s *Store) Pull(ctx context.Context, r Request) (Image, error) {
	img, err := s.pull(ctx, r)
	if err != nil {
		return Image{}, fmt.Errorf("pulling image %s: %w", spec.Quote(r.Reference), err)
	}
	return img, nil
}

func (s *Store) pull(ctx context.Context, r Request) (Image, error) {
	in, want, err := s.incoming(r)
	if err != nil {
		return Image{}, err
	}
	if in.name, err = spec.CheckReference("image", r.Reference); err != nil {
		return Image{}, err
	}
	release, err := s.adds.take(ctx, r.Tenant)
	if err != nil {
		return Image{}, err
	}
	defer release()
	in.shown, in.resolved = in.name.String(), in.name.Digest // which document checks
	if !r.Always {
		if img, err := s.present(in, want); img.Digest != "" || err != nil {
			return img, err
		}
	}
	in.report(Progress{Step: "resolve"})
	places, err := s.places(in.name, r.Login)
	if err != nil {
		return Image{}, err
	}
	for _, p := range places {
		defer p.close()
	}
	for i, p := range places {
		if err = in.resolve(want, v1.Descriptor{}, func(d v1.Descriptor) ([]byte, error) { return p.document(ctx, in.name, d) }); err == nil {
			places = places[i:]
			break
		}
		if ctx.Err() != nil {
			return Image{}, context.Cause(ctx)
		}
		if i < len(places)-1 {
			s.o.Log.Warn("a mirror does not have the image", "image", in.shown, "mirror", p.registry.RegistryStr(), "error", err)
		}
	}
	if err != nil {
		return Image{}, err
	}
	in.source = in.name.Repository // whoever reads a manifest there may read the blobs
	in.open = func(ctx context.Context, d v1.Descriptor, progress func(int64)) (io.ReadCloser, error) {
		return s.download(ctx, r.Tenant, places, d, progress)
	}
	return s.add(ctx, in)
}

// present returns the image if the store has the reference for this platform.
func (s *Store) present(in *incoming, want v1.Platform) (img Image, err error) {
	err = s.db.view(func(t tables) error {
		for _, owner := range []string{in.req.Tenant, Shared} {
			rec, err := get[Image](t.refs, refKey(owner, in.name.String()))
			if err != nil {
				return err
			}
			if rec == nil {
				continue
			}
			if got, err := parsePlatform(rec.Platform); err == nil && rank(want, got) > 0 {
				img = *rec
				return nil
			}
		}
		return nil
	})
	return img, err
}

// part is a download.
type part struct {
	*spool
	sum      hash.Hash
	n        int64
	err      error // of writing
	progress func(int64)

	// slow ends the download unless owed bytes more arrive within slowAfter.
	slow      *time.Timer
	slowAfter time.Duration
	owed      int64
}

func (w *part) Write(b []byte) (int, error) {
	n, err := w.spool.Write(b)
	w.sum.Write(b[:n])
	w.n += int64(n)
	w.err = err
	w.progress(w.n)
	if w.owed -= int64(n); w.owed <= 0 {
		w.owed = leastBytes
		w.slow.Reset(w.slowAfter)
	}
	return n, err
}

// restart forgets what has arrived.
func (w *part) restart() {
	w.sum.Reset()
	w.n = 0
	if _, w.err = w.file.Seek(0, io.SeekStart); w.err == nil {
		w.err = w.file.Truncate(0)
	}
}

const (
	maxFailures = 4   // in a row, without a byte more than before
	maxAttempts = 100 // of one blob at one place
	firstPause  = 100 * time.Millisecond
	maxPause    = 2 * time.Second
	leastBytes  = 1 << 20 // of a blob in twice Options.Stall
)

// download fetches a blob from the first place that has it, whole. A download that breaks off continues where it
// was, if the registry can do that; at another place it starts again, because what came may have been wrong.
func (s *Store) download(ctx context.Context, tenant string, places []*place, d v1.Descriptor, progress func(int64)) (_ io.ReadCloser, err error) {
	release, err := s.downloads.take(ctx, tenant)
	if err != nil {
		return nil, err
	}
	defer release()
	f, err := s.newFile()
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			f.file.Close()
		}
	}()
	w := &part{spool: f, sum: sha256.New(), progress: progress}
	for _, p := range places {
		w.restart()
		if err = p.fetch(ctx, d, w); err == nil || ctx.Err() != nil || w.err != nil {
			break
		}
	}
	if w.err != nil {
		err = noSpace(w.err)
	}
	if err == nil {
		_, err = f.file.Seek(0, io.SeekStart)
	}
	return f.file, err
}

// fetch completes a download from this place.
func (p *place) fetch(ctx context.Context, d v1.Descriptor, w *part) error {
	if err := p.connect(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w.owed, w.slowAfter = leastBytes, 2*p.stall
	w.slow = time.AfterFunc(w.slowAfter, func() { cancel(errStalled) })
	defer w.slow.Stop()
	most, failures := int64(0), 0
	for attempt := 1; ; attempt++ {
		err := p.fetchRest(ctx, d, w)
		if err == nil || w.err != nil || !errors.Is(err, ErrRegistry) || errors.Is(err, errStalled) {
			return err
		}
		if failures++; w.n > most {
			most, failures = w.n, 0
		}
		if failures >= maxFailures || attempt >= maxAttempts {
			return fmt.Errorf("%w; gave up after %d attempts", err, attempt)
		}
		select {
		case <-time.After(min(2*p.pause<<failures, maxPause)):
		case <-ctx.Done():
			return p.explain(ctx, ctx.Err())
		}
	}
}

// fetchRest fetches the bytes of the blob that are missing. ErrRegistry: a retry can help.
func (p *place) fetchRest(ctx context.Context, d v1.Descriptor, w *part) error {
	header := http.Header{}
	want := []int{http.StatusOK}
	if w.n > 0 {
		header.Set("Range", "bytes="+strconv.FormatInt(w.n, 10)+"-")
		want = append(want, http.StatusPartialContent, http.StatusRequestedRangeNotSatisfiable)
	}
	resp, err := p.get(ctx, "blobs/"+d.Digest.String(), header, want...)
	if errors.Is(err, ErrUnknown) {
		return fmt.Errorf("%w: registry %s does not have the blob", ErrCorrupt, spec.Quote(p.registry.RegistryStr()))
	}
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	says := func(kind error, format string, a ...any) error {
		return fmt.Errorf("%w: registry %s "+format, append([]any{kind, spec.Quote(p.registry.RegistryStr())}, a...)...)
	}
	switch {
	case resp.StatusCode == http.StatusRequestedRangeNotSatisfiable,
		resp.StatusCode == http.StatusPartialContent && !strings.HasPrefix(resp.Header.Get("Content-Range"), fmt.Sprintf("bytes %d-", w.n)):
		w.restart()
		return says(ErrRegistry, "cannot continue a download")
	case resp.StatusCode == http.StatusOK && w.n > 0:
		w.restart()
	}
	if w.err != nil {
		return w.err
	}
	rest := d.Size - w.n
	if resp.ContentLength >= 0 && resp.ContentLength != rest {
		return says(ErrCorrupt, "announces %d bytes, must be %d", resp.ContentLength, rest)
	}
	n, err := io.Copy(w, io.LimitReader(resp.Body, rest+1))
	switch {
	case w.err != nil:
		return w.err
	case n > rest:
		return says(ErrCorrupt, "sends more than the %d bytes that the manifest announces", d.Size)
	case err != nil:
		return p.explain(ctx, err)
	case n < rest:
		return says(ErrRegistry, "ended after %d of %d bytes", w.n, d.Size)
	}
	if got := hexDigest(w.sum); got != d.Digest {
		return says(ErrCorrupt, "sends a blob with the digest %s", got)
	}
	return nil
}
