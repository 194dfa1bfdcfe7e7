// Package install unpacks layers of images in boxes: one box for each layer, which decompresses the blob and writes
// the files. This process only carries bytes between the two commands and hashes them. The package knows nothing of
// references, registries and manifests.
package install

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/boxd/boxd/agent/unpack/proto"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/images"
	"github.com/boxd/boxd/internal/cleanup"
)

// Options of [New].
type Options struct {
	// Create builds a box, as the method of engine.Engine does.
	Create func(context.Context, engine.Spec) (engine.Box, error)
	Layers engine.Layers
	// Room, if not nil, is called every 100 ms while a box writes a layer. If the disk is about to be full it
	// returns an error, which ends the box: a layer has no hard limit on disk.
	Room func() error
	// AllowDegraded is that of the boxes.
	AllowDegraded bool
	// Commands replaces the commands of the boxes in tests: its result is given the arguments after "unpack" and
	// returns the command that runs instead.
	Commands func(args []string) engine.Command
}

// Bounds of a layer and of the box that unpacks it.
const (
	// MaxBytes is how much all files of a layer can hold, whatever images.Layer allows.
	MaxBytes = 1 << 40
	// MaxEntries is how many entries the archive of a layer can have. A large distribution has about 500,000 files.
	MaxEntries = 2_000_000
	// MaxRatio is how much longer the tar stream can be than the blob that it comes from; up to freeBytes it can
	// be longer.
	MaxRatio = 200

	memory     = 512 << 20
	patience   = 30 * time.Minute // with each command
	freeBytes  = 64 << 20
	entryBytes = 2 << 10 // of the tar stream, which are not content of files: header, padding, PAX records
	undoTime   = 30 * time.Second
	maxAnswer  = 64 << 10
)

// Unpacker implements [images.Unpacker].
type Unpacker struct {
	Options
	slots chan struct{}
}

var _ images.Unpacker = (*Unpacker)(nil)

// New returns an Unpacker, with two boxes for each processor at most.
func New(o Options) *Unpacker {
	return &Unpacker{Options: o, slots: make(chan struct{}, 2*runtime.NumCPU())}
}

// Unpack implements images.Unpacker. A layer has at most MaxBytes.
func (u *Unpacker) Unpack(ctx context.Context, l images.Layer) (_ images.Unpacked, err error) {
	l.MaxBytes = min(l.MaxBytes, MaxBytes)
	release, err := u.enter(ctx)
	if err != nil {
		return images.Unpacked{}, err
	}
	defer release()
	name := strings.ToLower(rand.Text())
	var undo cleanup.Stack
	defer func() { undo.Undo(&err) }()
	if err := u.Layers.MakeLayer(ctx, name); err != nil {
		return images.Unpacked{}, fmt.Errorf("making layer: %w", err)
	}
	undo.Push(func() error {
		return undoing(ctx, func(ctx context.Context) error { return u.Layers.AbandonLayer(ctx, name) })
	})

	got, err := u.fill(ctx, name, l)
	if err != nil {
		return images.Unpacked{}, err
	}
	if err := u.Layers.PublishLayer(ctx, name, got.ID); err != nil {
		return images.Unpacked{}, fmt.Errorf("publishing layer %s: %w", got.ID, err)
	}
	undo.Release()
	return got, nil
}

// fill writes the unpublished layer in a box, which is gone when fill returns.
func (u *Unpacker) fill(ctx context.Context, name string, l images.Layer) (_ images.Unpacked, err error) {
	b, remove, err := u.box(ctx, l.MaxBytes, name, l.Below...)
	if err != nil {
		return images.Unpacked{}, err
	}
	defer remove(&err)
	diffID, result, err := b.unpack(ctx, l)
	if err != nil {
		return images.Unpacked{}, err
	}
	if l.DiffID != "" && diffID != l.DiffID {
		return images.Unpacked{}, fmt.Errorf("%w: the archive of the layer has the digest sha256:%s, and the image says sha256:%s", images.ErrCorrupt, diffID, l.DiffID)
	}
	id := diffID
	if result.Inherits && len(l.Below) > 0 {
		id = l.ChainID
	}
	if !spec.IsLayerID(id) {
		return images.Unpacked{}, fmt.Errorf("unpacking layer sha256:%s: it needs the layers below it, and has no chain ID", diffID)
	}
	sum, err := b.sum(ctx)
	if err != nil {
		return images.Unpacked{}, err
	}
	return images.Unpacked{ID: id, Bytes: result.Bytes, Entries: result.Entries, Sum: sum.SHA256, Skipped: result.Skipped, Inherits: result.Inherits, Bundle: result.Bundle}, nil
}

// Sum implements images.Unpacker.
func (u *Unpacker) Sum(ctx context.Context, id string) (_ string, err error) {
	release, err := u.enter(ctx)
	if err != nil {
		return "", err
	}
	defer release()
	b, remove, err := u.box(ctx, 0, id)
	if err != nil {
		return "", err
	}
	defer remove(&err)
	sum, err := b.sum(ctx)
	return sum.SHA256, err
}

// enter waits until one box more may unpack.
func (u *Unpacker) enter(ctx context.Context) (release func(), err error) {
	select {
	case u.slots <- struct{}{}:
		return func() { <-u.slots }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// box creates a box with a layer and those below it. The caller calls remove, which adds to *err.
func (u *Unpacker) box(ctx context.Context, fileSize int64, layer string, below ...string) (_ *box, remove func(err *error), err error) {
	mounts := []engine.Mount{{Source: "/", Layer: layer, Target: proto.Dir, ReadOnly: spec.IsLayerID(layer)}}
	for n, id := range below {
		mounts = append(mounts, engine.Mount{Source: "/", Layer: id, Target: proto.Below + "/" + strconv.Itoa(n), ReadOnly: true})
	}
	b, err := u.Create(ctx, engine.Spec{
		Unpacks: true, Mounts: mounts, AllowDegraded: u.AllowDegraded,
		Limits: engine.Limits{Memory: memory, CPUs: engine.Unlimited, FileSize: fileSize},
	})
	if err != nil {
		return nil, nil, fmt.Errorf("creating a box to unpack a layer: %w", err)
	}
	return &box{Unpacker: u, Box: b}, func(err *error) {
		if rerr := undoing(ctx, b.Remove); rerr != nil {
			*err = errors.Join(*err, fmt.Errorf("removing the box that unpacked a layer: %w", rerr))
		}
	}, nil
}

// undoing calls step, also after the end of ctx.
func undoing(ctx context.Context, step func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	return step(ctx)
}

// streamLimit is how long the tar stream of a layer can be.
func streamLimit(l images.Layer) int64 {
	most := l.MaxBytes + MaxEntries*entryBytes
	if l.Size > 0 {
		most = min(most, freeBytes+MaxRatio*l.Size)
	}
	return most
}
