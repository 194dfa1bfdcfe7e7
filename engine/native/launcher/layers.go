package launcher

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native/rpc"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/oneline"
	"github.com/boxd/boxd/layers"
	"github.com/boxd/boxd/mounts"
)

// layerStore holds the layers of images, and which boxes use them. It is nil in a launcher
// without a data directory.
type layerStore struct {
	dataStore[layers.Store]

	mu    sync.Mutex
	boxes map[string]map[string]*layerUse // by layer, published or not, and box
	busy  map[string]bool                 // layers that are being published, abandoned or removed
}

// layerUse is how often a box uses a layer.
type layerUse struct {
	count   int
	release func() // nil for an unpublished layer
}

// openLayers opens the layers in the data directory, if there is one. If that fails, boxes still
// work, and requests for a layer get the reason.
func (l *Launcher) openLayers(dataDir string) {
	if dataDir == "" {
		return
	}
	l.layers = &layerStore{dataStore: dataStore[layers.Store]{dir: dataDir}, boxes: map[string]map[string]*layerUse{}, busy: map[string]bool{}}
	if err := l.layers.ready(); err != nil {
		fmt.Fprintf(os.Stderr, "boxd-init: no layers of images: %v\n", oneline.Error(err))
	}
}

// ready opens the store unless it is open, or returns why there are no layers.
func (s *layerStore) ready() error {
	if s == nil {
		return fmt.Errorf("this launcher keeps no layers of images: it was started without a data directory (boxd-init --data-dir): %w", engine.ErrUnenforceable)
	}
	return s.open(func() (*layers.Store, error) { return layers.Open(filepath.Join(s.dir, "images"), sharedBase) })
}

func (s *layerStore) close() error {
	if s == nil || s.store == nil {
		return nil
	}
	return s.store.Close()
}

// hold keeps a layer for a box, until drop or dropAll, and returns its directory, which the
// caller closes.
func (s *layerStore) hold(layer, box string) (_ *os.File, err error) {
	if err := s.ready(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy[layer] {
		return nil, fmt.Errorf("layer %s is being published or removed: %w", spec.Quote(layer), engine.ErrNoLayer)
	}
	var dir *os.File
	var release func()
	if spec.IsLayerID(layer) {
		var lent *os.File
		if lent, release, err = s.store.Use(layer); err == nil {
			if dir, err = linux.Dup(lent); err != nil {
				release()
			}
		}
	} else {
		dir, err = s.store.Unpublished(layer)
	}
	if err != nil {
		return nil, layerError(layer, err)
	}
	s.note(layer, box, release)
	return dir, nil
}

// note counts one use. It takes release, which only the first use of a box keeps.
func (s *layerStore) note(layer, box string, release func()) {
	boxes := s.boxes[layer]
	if boxes == nil {
		boxes = map[string]*layerUse{}
		s.boxes[layer] = boxes
	}
	u := boxes[box]
	if u == nil {
		boxes[box] = &layerUse{count: 1, release: release}
		return
	}
	u.count++
	if release != nil && u.release != nil {
		release()
	} else if release != nil {
		u.release = release
	}
}

// holdAdopted is hold for a box that already has the layer, before any client can have the layer removed.
func (s *layerStore) holdAdopted(layer, box string) {
	if s == nil || layer == "" {
		return
	}
	dir, err := s.hold(layer, box)
	if err == nil {
		dir.Close()
		return
	}
	// Its directory is gone, or cannot be opened yet.
	s.mu.Lock()
	defer s.mu.Unlock()
	s.note(layer, box, nil)
}

// drop takes back one hold.
func (s *layerStore) drop(layer, box string) {
	if s == nil || layer == "" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if u := s.boxes[layer][box]; u != nil { // dropAll may have removed it already
		if u.count--; u.count == 0 {
			s.forget(layer, box)
		}
	}
}

// dropAll takes back all holds of a box that is gone.
func (s *layerStore) dropAll(box string) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for layer, boxes := range s.boxes {
		if boxes[box] != nil {
			s.forget(layer, box)
		}
	}
}

func (s *layerStore) forget(layer, box string) {
	if release := s.boxes[layer][box].release; release != nil {
		release()
	}
	if delete(s.boxes[layer], box); len(s.boxes[layer]) == 0 {
		delete(s.boxes, layer)
	}
}

func (s *layerStore) holdersOf(layer string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.boxes[layer]))
}

// changeLayer calls fn while no box has the layer or can get it. A box that is being built or
// destroyed has it only for a moment.
func (l *Launcher) changeLayer(layer string, fn func(*layers.Store) error) error {
	s := l.layers
	if err := s.ready(); err != nil {
		return err
	}
	for end := time.Now().Add(goingTime); time.Now().Before(end) && !l.hasAny(s.holdersOf(layer)); {
		time.Sleep(10 * time.Millisecond)
	}
	s.mu.Lock()
	boxes := slices.Sorted(maps.Keys(s.boxes[layer]))
	busy := s.busy[layer]
	if len(boxes) == 0 && !busy {
		s.busy[layer] = true
	}
	s.mu.Unlock()
	if len(boxes) > 0 {
		return fmt.Errorf("box %q has layer %s, remove it first: %w", boxes[0], spec.Quote(layer), engine.ErrLayerInUse)
	}
	if busy {
		return fmt.Errorf("another request is changing layer %s: %w", spec.Quote(layer), engine.ErrLayerInUse)
	}
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.busy, layer)
	}()
	return layerError(layer, fn(s.store))
}

// unfinished lists the unpublished layers.
func (s *layerStore) unfinished() []string {
	if s == nil || s.ready() != nil {
		return nil // there is none
	}
	names, err := s.store.Unfinished()
	if err != nil {
		fmt.Fprintf(os.Stderr, "boxd-init: finding unpublished layers: %v\n", oneline.Error(err))
	}
	return names
}

// abandonLayers deletes unpublished layers that no box has.
func (l *Launcher) abandonLayers(names []string) error {
	var errs []error
	for _, name := range names {
		errs = append(errs, l.changeLayer(name, func(s *layers.Store) error { return s.Abandon(name) }))
	}
	return errors.Join(errs...)
}

// forsakeLayers removes what a client that is gone was unpacking, the boxes and the layers. No other
// client could complete it: the digest of a layer is computed by the client that unpacks it. The
// next client does not wait for this.
func (l *Launcher) forsakeLayers() {
	boxes := l.takeBoxes(func(b *box) bool { return b.spec.Unpacks })
	names := l.layers.unfinished()
	if len(boxes)+len(names) == 0 {
		return
	}
	l.requests.Go(func() {
		if err := errors.Join(l.discardAll(boxes), l.abandonLayers(names)); err != nil {
			fmt.Fprintf(os.Stderr, "boxd-init: removing layers whose client is gone: %v\n", oneline.Error(err))
		}
	})
}

// layerError translates the errors of package layers into those of package engine.
func layerError(layer string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, layers.ErrUnknown):
		return fmt.Errorf("layer %s: %w", spec.Quote(layer), engine.ErrNoLayer)
	case errors.Is(err, layers.ErrInUse):
		return fmt.Errorf("another launcher has layer %s: %w", spec.Quote(layer), engine.ErrLayerInUse)
	case errors.Is(err, layers.ErrExists), errors.Is(err, layers.ErrRefused):
		return &engine.FieldError{Field: "layer", Value: spec.Quote(layer), Rule: err.Error()}
	}
	return fmt.Errorf("layer %s: %w", spec.Quote(layer), err)
}

// layerSource opens the layer that m mounts, and holds it for the box.
func (l *Launcher) layerSource(m engine.Mount, box string) (*source, error) {
	dir, err := l.layers.hold(m.Layer, box)
	if err != nil {
		return nil, err
	}
	return &source{Source: &mounts.Source{File: dir, Path: m.Layer, UID: sharedBase, GID: sharedBase, IsDir: true}}, nil
}

// layerMap shows the users of a box as the users of layers.
func layerMap(base int) mounts.IDMap {
	all := []mounts.IDRange{{Disk: sharedBase, Host: uint32(base), Size: idRange}}
	return mounts.IDMap{UIDs: all, GIDs: all}
}

// handleLayers answers the requests about layers.
func (l *Launcher) handleLayers(r *request) (any, error) {
	var m struct{ Name, ID, After string } // the fields of all of them
	if err := decode(r.Body, &m); err != nil {
		return nil, err
	}
	if r.Type == rpc.TypeLayers {
		return l.listLayers(m.After)
	}
	layer, check := m.Name, engine.ValidateLayerName
	if r.Type == rpc.TypeRemoveLayer {
		layer, check = m.ID, engine.ValidateLayerID
	}
	if err := check("layer", layer); err != nil {
		return nil, err
	}
	if r.Type == rpc.TypePublishLayer {
		if err := engine.ValidateLayerID("id", m.ID); err != nil {
			return nil, err
		}
	}
	if l.layers == nil && (r.Type == rpc.TypeAbandonLayer || r.Type == rpc.TypeRemoveLayer) {
		return nil, nil // it cannot exist
	}
	return nil, l.changeLayer(layer, func(s *layers.Store) error {
		switch r.Type {
		case rpc.TypeMakeLayer:
			return s.Make(m.Name)
		case rpc.TypePublishLayer:
			return s.Publish(m.Name, m.ID)
		case rpc.TypeAbandonLayer:
			return s.Abandon(m.Name)
		}
		return s.Remove(m.ID)
	})
}

func (l *Launcher) listLayers(after string) (list rpc.LayerList, err error) {
	if l.layers == nil {
		return list, nil
	}
	if err := l.layers.ready(); err != nil {
		return list, err
	}
	ids, err := l.layers.store.List()
	if err != nil {
		return list, fmt.Errorf("listing layers: %w", err)
	}
	first, found := slices.BinarySearch(ids, after)
	if found {
		first++
	}
	ids = ids[first:]
	list.More = len(ids) > rpc.MaxLayers
	list.IDs = ids[:min(len(ids), rpc.MaxLayers)]
	return list, nil
}
