// Package rootfs turns the host image into the root file system of a box, with
// a sized private writable part, and takes it apart again.
//
// [OpenHost] prepares once what all boxes share: read-only clones of the host's
// system directories, the needed parts of /etc, a small /dev. [Host.Build] then
// makes the root of one box out of clones of these and of a few tmpfs.
//
// Everything is mounted in the mount namespace of the calling process, which
// must be a private one: nothing here may propagate to the host. All attaching
// is done by descriptor, beneath the new root, following no symlink.
//
// The package does not know image formats, cgroups or processes, and it does
// not start anything: a box's mount namespace is made by its caller.
package rootfs
