package native

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native/rpc"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/linux"
	"golang.org/x/sys/unix"
)

var _ engine.Storage = (*Service)(nil)

// MakeVolume implements engine.Storage.
func (s *Service) MakeVolume(ctx context.Context, v engine.Volume) error {
	if err := v.Validate(); err != nil {
		return err
	}
	if v.From != "" {
		return s.copyVolume(ctx, v)
	}
	if _, err := s.link.call(ctx, rpc.TypeMakeVolume, rpc.MakeVolume{Volume: v}, nil); err != nil {
		return fmt.Errorf("making volume %q: %w", v.Name, err)
	}
	return nil
}

// copyVolume repeats its request until the copy is complete.
func (s *Service) copyVolume(ctx context.Context, v engine.Volume) error {
	ask := rpc.CopyVolume{From: v.From, Volume: v}
	ask.Volume.From = ""
	for {
		var is rpc.VolumeCopy
		if _, err := s.link.call(ctx, rpc.TypeCopyVolume, ask, &is); err != nil {
			return fmt.Errorf("copying volume %q to %q: %w", v.From, v.Name, err)
		}
		if is.Complete {
			return nil
		}
	}
}

// RemoveVolume implements engine.Storage.
func (s *Service) RemoveVolume(ctx context.Context, name string) error {
	if err := engine.ValidateVolumeName(name); err != nil {
		return err
	}
	if _, err := s.link.call(ctx, rpc.TypeRemoveVolume, rpc.RemoveVolume{Name: name}, nil); err != nil {
		return fmt.Errorf("removing volume %q: %w", name, err)
	}
	return nil
}

// Volumes implements engine.Storage.
func (s *Service) Volumes(ctx context.Context) ([]engine.VolumeState, error) {
	var all []engine.VolumeState
	for {
		var ask rpc.Volumes
		if len(all) > 0 {
			ask.After = all[len(all)-1].Name
		}
		var list rpc.VolumeList
		if _, err := s.link.call(ctx, rpc.TypeVolumes, ask, &list); err != nil {
			return nil, fmt.Errorf("listing volumes: %w", err)
		}
		all = append(all, list.Volumes...)
		if !list.More || len(list.Volumes) == 0 {
			return all, nil
		}
	}
}

// OpenDirectory implements engine.Storage.
func (s *Service) OpenDirectory(ctx context.Context, d engine.Directory) (*os.File, error) {
	if err := d.Validate(); err != nil {
		return nil, err
	}
	files, err := s.link.call(ctx, rpc.TypeOpenDirectory, rpc.OpenDirectory{Directory: d}, nil)
	if err == nil {
		var f *os.File
		if f, err = oneDirectory(files, d.Path); err == nil {
			return f, nil
		}
	}
	return nil, fmt.Errorf("opening directory %s: %w", spec.Quote(d.Path), err)
}

// oneDirectory takes ownership of files and returns the directory that they must be.
func oneDirectory(files []*os.File, name string) (*os.File, error) {
	if len(files) != 1 {
		linux.CloseAll(files)
		return nil, fmt.Errorf("%d descriptors: %w", len(files), wire.ErrProtocol)
	}
	defer files[0].Close()
	if st, err := linux.Fstat(files[0]); err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return nil, errors.Join(fmt.Errorf("not a directory: %w", wire.ErrProtocol), err)
	}
	return linux.DupAs(files[0], name)
}

// LimitDirectory implements engine.Storage.
func (s *Service) LimitDirectory(ctx context.Context, d engine.Directory, bytes, inodes int64) error {
	if err := engine.ValidateLimit(d, bytes, inodes); err != nil {
		return err
	}
	ask := rpc.LimitDirectory{Directory: d, Bytes: bytes, Inodes: inodes}
	if _, err := s.link.call(ctx, rpc.TypeLimitDirectory, ask, nil); err != nil {
		return fmt.Errorf("limiting directory %s: %w", spec.Quote(d.Path), err)
	}
	return nil
}
