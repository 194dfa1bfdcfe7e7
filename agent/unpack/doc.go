// Package unpack turns the archive of an image layer into a directory. It runs in a box, as the builtin that
// package proto describes, and has no other privilege than to give files to other users of the box.
//
// An archive is hostile. Each name is cleaned as text and then followed from the top of the layer, one directory
// at a time and never through a symlink by the kernel, so no entry is written elsewhere. Seccomp filters of boxes
// refuse openat2(2), and no step here needs it.
//
// Where the image specification leaves a choice, a layer becomes what umoci and containerd make of it:
//
//   - A later entry replaces an earlier one of the same name, whatever their types; a directory that meets a
//     directory takes its metadata and keeps the content.
//   - A symlink of the archive is followed where it is the directory of a later entry, inside the layer; if the
//     caller shows the layers below, theirs are followed as well.
//   - A hard link to a file that the archive does not contain is refused, as by containerd: it may be in a layer
//     below, which a layer cannot change.
//   - A whiteout hides the layers below and no entry of its own archive, before it or after it. So a directory
//     that the archive also deletes has nothing of the directory below.
//   - The end mark of an archive may be missing; what comes after it is ignored.
//
// Unlike both, it leaves out devices, setuid and setgid bits, file capabilities and all other extended attributes
// but user.*.
package unpack
