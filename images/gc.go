package images

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/boxd/boxd/engine"
)

// Collected is what GC has deleted.
type Collected struct {
	Images int   `json:"images"`
	Layers int   `json:"layers"`
	Bytes  int64 `json:"bytes"`
}

// marked is what one pass of GC keeps, and what it drops.
type marked struct {
	layers map[string]*Unpacked  // all
	users  map[string]int        // images, leases and pins that need a layer, by ID
	held   map[string]bool       // layers that a lease or a pin needs
	bytes  int64                 // of layers with a user
	images map[string]*candidate // by digest, without those that are leased
}

// candidate is an image that may go: all references with its digest.
type candidate struct {
	rec  *Image
	keys []string
	used time.Time
}

// GC deletes what no reference and no lease needs, and then images that were not used longest until the store is
// within its size.
func (s *Store) GC(ctx context.Context) (c Collected, err error) {
	if s.lock == nil {
		return c, errReadOnly
	}
	published, err := s.o.Layers.Layers(ctx)
	if err != nil {
		return c, fmt.Errorf("layers of the engine: %w", err)
	}
	dropped := map[string]*Unpacked{}
	s.mu.Lock()
	var m *marked
	err = s.db.update(func(t tables) (err error) {
		if m, err = s.mark(t); err != nil {
			return err
		}
		for _, key := range m.evict(s.o.MaxBytes) {
			c.Images++
			err = errors.Join(err, t.refs.Delete([]byte(key)))
		}
		for id, rec := range m.layers {
			if m.users[id] == 0 {
				dropped[id] = rec
				err = errors.Join(err, t.layers.Delete([]byte(id)))
			}
		}
		return err
	})
	unknown := s.pins[""] > 0
	s.mu.Unlock()
	if err != nil {
		return c, fmt.Errorf("collecting images: %w", err)
	}
	for _, id := range published {
		if rec := dropped[id]; rec != nil || m.users[id] == 0 && !unknown {
			err = errors.Join(err, s.removeLayer(ctx, id, rec, &c))
		}
	}
	return c, err
}

// removeLayer removes a layer that has no record, unless a request has begun to need it, or a box uses it.
func (s *Store) removeLayer(ctx context.Context, id string, rec *Unpacked, c *Collected) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	needed := s.pins[id] > 0 || s.pins[""] > 0
	err := s.db.view(func(t tables) error {
		needed = needed || t.layers.Get([]byte(id)) != nil // it has been made again
		return nil
	})
	if err == nil && !needed {
		err = s.o.Layers.RemoveLayer(ctx, id)
	}
	if needed || errors.Is(err, engine.ErrLayerInUse) { // a later GC removes it
		return nil
	}
	if err != nil {
		return fmt.Errorf("removing layer %s: %w", id, err)
	}
	c.Layers++
	if rec != nil {
		c.Bytes += rec.Bytes
	}
	return nil
}

// mark finds what is needed. The caller holds mu.
func (s *Store) mark(t tables) (*marked, error) {
	m := &marked{map[string]*Unpacked{}, map[string]int{}, map[string]bool{}, 0, map[string]*candidate{}}
	need := func(r *Image) {
		for _, id := range slices.Compact(slices.Sorted(slices.Values(r.Layers))) {
			m.users[id]++
		}
	}
	leased := map[string]bool{}
	err := errors.Join(
		each(t.layers, func(id string, rec *Unpacked) { m.layers[id] = rec }),
		each(t.leases, func(_ string, r *Image) {
			need(r)
			leased[r.Digest] = true
			for _, id := range r.Layers {
				m.held[id] = true
			}
		}),
		each(t.refs, func(key string, r *Image) {
			i := m.images[r.Digest]
			if i == nil {
				i = &candidate{rec: r}
				m.images[r.Digest] = i
				need(r)
			}
			i.keys = append(i.keys, key)
			for _, at := range []time.Time{r.Added, r.Used} {
				if at.After(i.used) {
					i.used = at
				}
			}
		}))
	for id := range s.pins {
		m.users[id]++
		m.held[id] = true
	}
	for digest := range leased {
		delete(m.images, digest)
	}
	for id, rec := range m.layers {
		if m.users[id] > 0 {
			m.bytes += rec.Bytes
		}
	}
	return m, err
}

// evict drops the images that were not used longest, until the layers have at most limit bytes, and returns the
// keys of their references. An image whose layers are all held stays, because nothing would be gained.
func (m *marked) evict(limit int64) (keys []string) {
	oldest := slices.SortedFunc(maps.Keys(m.images), func(a, b string) int { return m.images[a].used.Compare(m.images[b].used) })
	for _, digest := range oldest {
		if limit <= 0 || m.bytes <= limit {
			break
		}
		layers := slices.Compact(slices.Sorted(slices.Values(m.images[digest].rec.Layers)))
		var gain int64
		free := false
		for _, id := range layers {
			if rec := m.layers[id]; rec != nil && m.users[id] == 1 {
				gain += rec.Bytes
			}
			free = free || !m.held[id]
		}
		if !free {
			continue
		}
		for _, id := range layers {
			m.users[id]--
		}
		m.bytes -= gain
		keys = append(keys, m.images[digest].keys...)
	}
	return keys
}

// Verify compares the image on disk with what was pulled. ErrCorrupt names the first layer that differs.
func (s *Store) Verify(ctx context.Context, tenant, reference string) error {
	var rec *Image
	var layers []*Unpacked
	err := s.db.view(func(t tables) (err error) {
		if _, rec, err = find(t, tenant, reference); err != nil {
			return err
		}
		for _, id := range rec.Layers {
			l, err := get[Unpacked](t.layers, []byte(id))
			if err == nil && l == nil {
				err = fmt.Errorf("%w: layer %s has no record: pull the image again", ErrCorrupt, id)
			}
			if err != nil {
				return err
			}
			layers = append(layers, l)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if rec == nil {
		return unknown(reference)
	}
	unpin := s.pin(rec.Layers...)
	defer unpin()
	for _, l := range layers {
		sum, err := s.o.Unpacker.Sum(ctx, l.ID)
		if err != nil {
			return fmt.Errorf("layer %s: %w", l.ID, err)
		}
		if sum != l.Sum {
			return fmt.Errorf("%w: layer %s has changed on disk since it was unpacked: remove all images with it, run GC, and pull them again", ErrCorrupt, l.ID)
		}
	}
	return nil
}
