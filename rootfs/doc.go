// Package rootfs builds the root file system of a box from the image "host", or from the layers
// of an image, with private writable parts of limited size, and takes it apart again.
//
// [OpenHost] prepares once what all boxes share: read-only clones of the host's
// system directories, and a copy of the public part of /etc. [Host.Build] then builds the
// root of one box from clones of these and several tmpfs. With [Options].Layers the root is an
// overlay of these directories instead of the host's, and otherwise the same: its /dev, /tmp, home
// directory, sizes and adoption.
//
// Everything is mounted in the mount namespace of the calling process, which must be
// private: no mount may propagate to the host. Mounts are attached by descriptor, beneath
// the new root, without following symlinks.
//
// The package does not know image formats, cgroups or processes, and starts nothing: the
// caller creates the box's mount namespace.
package rootfs
