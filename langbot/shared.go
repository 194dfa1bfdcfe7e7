package langbot

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"regexp"
	"syscall"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/langbot/protocol"
)

var markerName = regexp.MustCompile(`^\.langbot-box-volume-probe-[a-f0-9]{32}$`)

// maxMarker is the largest size of a marker file, in bytes.
const maxMarker = 1024

// verifySharedWorkspace proves to the client that it and the daemon use the same directory: it
// returns the digest of a file that the client created there.
func (k *call) verifySharedWorkspace(ctx context.Context) (any, error) {
	name, err := protocol.String(k.data, "marker_name")
	if err == nil {
		var sum []byte
		var size int64
		if sum, size, err = k.marker(ctx, name); err == nil {
			return map[string]any{"marker_name": name, "sha256": hex.EncodeToString(sum), "size": size}, nil
		}
	}
	return nil, protocol.Errorf(protocol.Readiness, "cannot read the shared workspace probe: %s", k.words(err))
}

// marker returns the digest and the size of the marker file.
func (k *call) marker(ctx context.Context, name string) (sum []byte, size int64, err error) {
	if !markerName.MatchString(name) {
		return nil, 0, fmt.Errorf("marker_name %q: must match %s", name, markerName)
	}
	l := k.settings().local
	storage := k.s.storage()
	if l.workspace == "" || l.within == "" || storage == nil {
		return nil, 0, errors.New("there is no shared workspace: box_init must name an absolute box.local.default_workspace in an allowed mount root")
	}
	dir, err := storage.OpenDirectory(ctx, engine.Directory{Path: l.workspace, Within: l.within, ReadOnly: true})
	if err != nil {
		return nil, 0, err
	}
	defer dir.Close()
	f, err := linux.OpenAt(dir, name, syscall.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK) // neither a symlink's target, nor waiting for a FIFO
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, 0, err
	}
	if !info.Mode().IsRegular() || info.Size() < 1 || info.Size() > maxMarker {
		return nil, 0, fmt.Errorf("%s: must be a regular file of 1 to %d bytes", name, maxMarker)
	}
	hash := sha256.New()
	size, err = io.Copy(hash, io.LimitReader(f, maxMarker+1))
	if err == nil && (size < 1 || size > maxMarker) {
		err = fmt.Errorf("%s: it changed while it was read", name)
	}
	return hash.Sum(nil), size, err
}
