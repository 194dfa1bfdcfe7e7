package images

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"go.etcd.io/bbolt"

	"github.com/boxd/boxd/engine/spec"
)

// incoming is an image at its source, whose layers the store may lack.
type incoming struct {
	name       spec.Reference
	shown      string // Image.Name
	req        Request
	resolved   string // the digest of the document, manifest or index, from which the manifest was found; empty: none
	digest     string // of the manifest
	layers     []v1.Descriptor
	diffIDs    []v1.Hash
	chain      []string // chain IDs
	blobs      []string // as chain, of the blobs' digests
	source     string   // requests with the same source can read the same blobs and layers, and share their work
	run        Config
	platform   v1.Platform
	maxBytes   int64
	totalBytes int64      // of the blobs
	reporting  sync.Mutex // during calls of req.Progress
	// By layer, nil for none: the store's layer that is used if the source has the layer's blob, and if it lacks it;
	// see findStored. made are those that this request has made, or waited for.
	carried, absent []*Unpacked
	made            []atomic.Pointer[Unpacked]
	// carries reports whether the source has a blob, and fails if what it has under the blob's name is something else.
	// nil: it has all blobs, and gives them by their digest only.
	carries func(ctx context.Context, d v1.Descriptor) (bool, error)
	// open opens the blob of a layer. Its reader fails with ErrCorrupt where the blob is not what its digest
	// says. progress is told how many bytes of it have arrived.
	open func(ctx context.Context, d v1.Descriptor, progress func(int64)) (io.ReadCloser, error)
}

// describe checks manifest and configuration, and fills in what follows from them.
func (in *incoming) describe(manifest, config []byte, want v1.Platform) error {
	d, err := parseDocument(manifest)
	if err != nil {
		return err
	}
	if want := in.name.Digest; want != "" && want != in.resolved && want != digestOf(manifest) {
		return fmt.Errorf("%w: its digest is %s, and its name says %s: name it with a tag", ErrRefused, digestOf(manifest), want)
	}
	if d.Config == nil {
		return fmt.Errorf("%w: an index where a manifest should be", ErrCorrupt)
	}
	c, err := parseConfig(config, len(d.Layers))
	if err != nil {
		return err
	}
	if in.platform, err = check(want, c); err != nil {
		return err
	}
	if in.run, err = runConfig(c); err != nil {
		return err
	}
	in.digest, in.layers, in.diffIDs, in.chain = digestOf(manifest), d.Layers, c.RootFS.DiffIDs, chainIDs(c.RootFS.DiffIDs)
	var digests []v1.Hash
	for _, l := range in.layers {
		in.totalBytes += l.Size
		digests = append(digests, l.Digest)
	}
	in.blobs = chainIDs(digests)
	in.carried, in.absent, in.made = make([]*Unpacked, len(in.layers)), make([]*Unpacked, len(in.layers)), make([]atomic.Pointer[Unpacked], len(in.layers))
	return nil
}

// add makes the layers of the image and then its reference.
func (s *Store) add(ctx context.Context, in *incoming) (img Image, err error) {
	if in.maxBytes, err = s.allowance(in, in.totalBytes); err != nil {
		return Image{}, err
	}
	defer s.begin(ctx, &err, in.ids()...)()
	if err := s.findStored(in); err != nil {
		return Image{}, err
	}
	var stack []Unpacked
	group, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for i := range in.layers {
		wg.Go(func() {
			got, e := s.stack(group, in, i, in.report)
			if e != nil {
				cancel(e) // the first one counts
				return
			}
			in.report(Progress{Step: "done", Layer: in.layers[i].Digest.String(), Done: in.layers[i].Size, Total: in.layers[i].Size})
			if i == len(in.layers)-1 {
				stack = got
			}
		})
	}
	wg.Wait()
	if err = context.Cause(group); err != nil {
		return Image{}, err
	}
	if img, err = s.finish(in, stack); err == nil && s.o.MaxBytes > 0 {
		if _, e := s.GC(context.WithoutCancel(ctx)); e != nil {
			s.o.Log.Warn("images cannot be collected", "error", e)
		}
	}
	return img, err
}

// begin pins layers for a request. end unpins them, and deletes what a request that failed has made: unless a
// retry can use it, because the registry or the caller broke off.
func (s *Store) begin(ctx context.Context, err *error, ids ...string) (end func()) {
	unpin := s.pin(ids...)
	return func() {
		unpin()
		if *err != nil && !errors.Is(*err, ErrRegistry) && ctx.Err() == nil {
			if _, e := s.GC(ctx); e != nil {
				s.o.Log.Warn("images cannot be collected", "error", e)
			}
		}
	}
}

// ids are the IDs that the layers of the image can get.
func (in *incoming) ids() []string {
	ids := append([]string(nil), in.chain...)
	for _, d := range in.diffIDs {
		ids = append(ids, d.Hex)
	}
	return ids
}

// flight names the work that makes the layers 0 to i. Those who share it name the same blobs: their configurations
// alone say nothing of where the layers come from.
func (in *incoming) flight(i int) string { return in.source + " " + in.chain[i] + " " + in.blobs[i] }

// stack makes the layers 0 to i of the image, or waits for the work that makes them. report may be nil.
func (s *Store) stack(ctx context.Context, in *incoming, i int, report func(Progress)) ([]Unpacked, error) {
	if i < 0 {
		return nil, nil
	}
	for {
		got, own, err := s.flights.do(ctx, s.base, in.flight(i), in, report, func(work context.Context, job *flight) ([]Unpacked, error) {
			return s.makeStack(work, job, in, i)
		})
		for j := range got {
			in.made[j].Store(&got[j])
		}
		if err == nil || own || ctx.Err() != nil {
			return got, err
		}
		// The other request failed, perhaps for a reason of its own: its registry, its login.
	}
}

func (s *Store) makeStack(ctx context.Context, job *flight, in *incoming, i int) ([]Unpacked, error) {
	defer s.pin(in.chain[i], in.diffIDs[i].Hex)()
	layer := in.layers[i]
	name := layer.Digest.String()
	rec, err := in.known(ctx, i)
	if err != nil {
		return nil, err
	}
	report := func(step string) func(int64) {
		return func(n int64) { job.now.Store(&Progress{Step: step, Layer: name, Done: n, Total: layer.Size}) }
	}
	var blob io.ReadCloser
	var openErr error
	var opened sync.WaitGroup
	if rec == nil {
		opened.Go(func() {
			if blob, openErr = in.open(ctx, layer, report("download")); openErr != nil {
				job.cancel(openErr)
			}
		})
	}
	below, err := s.stack(ctx, in, i-1, nil) // the request may have gone, and reports each layer itself
	if err != nil {
		job.cancel(err)
	}
	opened.Wait()
	if blob != nil && openErr == nil {
		defer blob.Close()
	}
	if err = cmp.Or(err, openErr); err != nil {
		return nil, err
	}
	if rec == nil {
		l := Layer{Blob: blob, Size: layer.Size, DiffID: in.diffIDs[i].Hex, ChainID: in.chain[i], MaxBytes: in.maxBytes, Progress: report("unpack")}
		for _, b := range below {
			l.MaxBytes -= b.Bytes
			l.Below = append(l.Below, b.ID)
		}
		if rec, err = s.unpack(ctx, l, in.chain[i]); err == nil {
			err = s.record(rec, origin{layer.Digest.Hex, in.req.Tenant})
		}
		if err != nil {
			return nil, fmt.Errorf("layer %s: %w", name, err)
		}
		in.made[i].Store(rec)
	}
	return append(below[:len(below):len(below)], *rec), nil
}

// findStored finds the layers of the image that need no blob of it, although its author may be a stranger to the one
// who brings it: the digests in its configuration prove nothing. A layer is used in place of a blob that was once
// unpacked to it, if the tenant has the layer in another image, or has brought that blob before; or if it is shared. A
// layer is used where the source has no blob for it, if the tenant has it in another image or it is shared. So what an
// operator brings for all tenants never brings a layer that only some of them have.
func (s *Store) findStored(in *incoming) error {
	return s.db.view(func(t tables) error {
		readable := map[string]bool{}
		err := each(t.refs, func(_ string, r *Image) {
			for _, id := range r.Layers {
				readable[id] = readable[id] || r.Tenant == in.req.Tenant || r.Tenant == Shared
			}
		})
		for i, blob := range in.layers {
			for _, id := range []string{in.diffIDs[i].Hex, in.chain[i]} { // the one of this stack counts
				rec, e := get[Unpacked](t.layers, []byte(id))
				err = errors.Join(err, e)
				if rec == nil || rec.Inherits && id != in.chain[i] { // of another stack, where it is the lowest
					continue
				}
				same := blob.Digest == in.diffIDs[i] || slices.ContainsFunc(rec.Origins, func(o origin) bool { return o.Blob == blob.Digest.Hex })
				brought := slices.Contains(rec.Origins, origin{blob.Digest.Hex, in.req.Tenant})
				if readable[id] {
					in.absent[i] = rec
				}
				if same && readable[id] || brought {
					in.carried[i] = rec
				}
				if readable[id] || brought {
					in.source += " " + id
				}
			}
		}
		return err
	})
}

// known returns layer i if it need not be made, else nil.
func (in *incoming) known(ctx context.Context, i int) (*Unpacked, error) {
	if rec := in.made[i].Load(); rec != nil {
		return rec, nil
	}
	if in.carries == nil || in.carried[i] == nil && in.absent[i] == nil {
		return in.carried[i], nil
	}
	has, err := in.carries(ctx, in.layers[i])
	if err != nil {
		return nil, fmt.Errorf("layer %s: %w", in.layers[i].Digest, err)
	}
	if has {
		return in.carried[i], nil
	}
	return in.absent[i], nil
}

// unpack makes one layer. chain is its chain ID, "" if it is not known. The blob has been read to its end.
func (s *Store) unpack(ctx context.Context, l Layer, chain string) (*Unpacked, error) {
	if l.MaxBytes <= 0 {
		return nil, fmt.Errorf("%w: the layers below it leave no room for it", ErrQuota)
	}
	u, err := s.o.Unpacker.Unpack(ctx, l)
	if err != nil {
		return nil, noSpace(err)
	}
	if !spec.IsLayerID(u.ID) || l.DiffID != "" && u.ID != l.DiffID && u.ID != chain {
		return nil, fmt.Errorf("%w: it was unpacked as %s, which is neither its diff ID nor its chain ID", ErrCorrupt, spec.Quote(u.ID))
	}
	if _, err := io.Copy(io.Discard, l.Blob); err != nil { // whatever follows the end of the archive belongs to the digest
		return nil, err
	}
	return &u, nil
}

// maxOrigins is how many origins of a layer are kept. The oldest one goes first.
const maxOrigins = 16

// record writes the record of a layer that was made from a blob.
func (s *Store) record(u *Unpacked, from origin) error {
	return s.db.update(func(t tables) error {
		old, err := get[Unpacked](t.layers, []byte(u.ID))
		if err != nil {
			return err
		}
		u.Origins = []origin{from}
		if old != nil {
			others := slices.DeleteFunc(old.Origins, func(o origin) bool { return o == from })
			u.Origins = append(others[max(0, len(others)-maxOrigins+1):], from)
		}
		return put(t.layers, []byte(u.ID), u)
	})
}

// maxReferences is how many images a tenant can have, whatever their size: each takes up to maxRunConfig of the database.
const maxReferences = 1000

// allowance returns how many bytes the layers of the image may have together. It fails if they are known to have
// more: the image has at least as many as its blobs.
func (s *Store) allowance(in *incoming, known int64) (int64, error) {
	most := int64(math.MaxInt64)
	err := s.db.view(func(t tables) error {
		ours := func(key string, r *Image) bool {
			return r.Tenant == in.req.Tenant && key != string(refKey(r.Tenant, in.name.String()))
		}
		if in.req.Tenant != Shared {
			n := 0
			err := each(t.refs, func(key string, r *Image) {
				if ours(key, r) {
					n++
				}
			})
			if err != nil || n >= maxReferences {
				return cmp.Or(err, fmt.Errorf("%w: the tenant has %d images, and at most %d are possible: remove some", ErrQuota, n, maxReferences))
			}
		}
		if s.o.MaxBytes > 0 { // GC makes room, but not of what is leased
			leased, err := in.others(t, t.leases, func(string, *Image) bool { return true })
			if err != nil {
				return err
			}
			most = s.o.MaxBytes - leased
		}
		if s.o.TenantBytes > 0 && in.req.Tenant != Shared {
			own, err := in.others(t, t.refs, ours)
			if err != nil {
				return err
			}
			most = min(most, s.o.TenantBytes-own)
		}
		return nil
	})
	if err == nil && (most <= 0 || known > most) {
		err = fmt.Errorf("%w: it has at least %d bytes, and %d are left: remove images, or raise the limit", ErrQuota, known, max(most, 0))
	}
	return most, err
}

// others returns the bytes of the distinct layers of some records, without those that the image itself has.
func (in *incoming) others(t tables, b *bbolt.Bucket, counts func(key string, r *Image) bool) (sum int64, err error) {
	seen := map[string]bool{}
	for _, id := range in.ids() {
		seen[id] = true
	}
	err = each(b, func(key string, r *Image) {
		for _, id := range r.Layers {
			if rec, e := get[Unpacked](t.layers, []byte(id)); e == nil && rec != nil && !seen[id] && counts(key, r) {
				seen[id] = true
				sum += rec.Bytes
			}
		}
	})
	return sum, err
}

// verifier fails at the end of a blob that has another digest or size. Without a digest it only computes it.
type verifier struct {
	in   io.Reader
	sum  hash.Hash
	want v1.Descriptor
	n    int64 // bytes read so far
}

func newVerifier(in io.Reader, want v1.Descriptor) *verifier {
	return &verifier{in: in, sum: sha256.New(), want: want}
}

func (v *verifier) Read(p []byte) (int, error) {
	n, err := v.in.Read(p)
	v.sum.Write(p[:n])
	v.n += int64(n)
	if v.want.Digest.Hex == "" {
		return n, err
	}
	if v.n > v.want.Size {
		return 0, fmt.Errorf("%w: blob %s has more than %d bytes", ErrCorrupt, v.want.Digest, v.want.Size)
	}
	if errors.Is(err, io.EOF) {
		switch got := v.hash(); {
		case v.n != v.want.Size:
			err = fmt.Errorf("%w: blob %s has %d bytes, must have %d", ErrCorrupt, v.want.Digest, v.n, v.want.Size)
		case got != v.want.Digest:
			err = fmt.Errorf("%w: blob %s has the digest %s", ErrCorrupt, v.want.Digest, got)
		}
	}
	return n, err
}

func (v *verifier) hash() v1.Hash { return hexDigest(v.sum) }
