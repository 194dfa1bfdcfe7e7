package mounts

import (
	"errors"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/linux"
)

// OpenIn is [Open] for a source in a volume, the root of which is given. What a volume
// holds was written by boxes: the way to the source passes no symlink and no mount.
// No deny list applies, as nothing of the host is in it. root stays the caller's.
func OpenIn(root *os.File, m spec.Mount) (*Source, error) {
	if err := m.ValidateVolume(); err != nil {
		return nil, err
	}
	f, err := linux.Openat2(root, inVolume(m.Source), unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_NOFOLLOW,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	})
	if errors.Is(err, unix.ELOOP) {
		return nil, refuse(spec.MountSource, m.Source, "passes a symlink in volume %s, name the real path", m.Volume).Because(err)
	}
	if err != nil {
		return nil, explainOpen(m.Source, err)
	}
	s, err := sourceInVolume(f, m)
	if err != nil {
		f.Close()
		return nil, err
	}
	return s, nil
}

// inVolume is an absolute path in a volume relative to its root.
func inVolume(source string) string { return "./" + strings.TrimPrefix(source, "/") }

// sourceInVolume checks f, which m.Source led to. It takes f unless it fails.
func sourceInVolume(f *os.File, m spec.Mount) (*Source, error) {
	st, err := linux.Fstat(f)
	if err != nil {
		return nil, err
	}
	if kind := kindOf(st.Mode); kind != "" {
		return nil, refuse(spec.MountSource, m.Source, "is a %s, must be a directory or a regular file", kind)
	}
	return &Source{
		File: f, Path: m.Volume + ":" + m.Source, UID: st.Uid, GID: st.Gid,
		IsDir: st.Mode&unix.S_IFMT == unix.S_IFDIR,
	}, nil
}
