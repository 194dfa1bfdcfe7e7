// Package containerd builds boxes through containerd: a box is a container and a task of
// containerd's, and a shim of containerd's is the parent of its PID 1. The launcher uses it, as
// one of its runtimes.
//
// The launcher does not link containerd's client. A child, the program boxd-containerd, speaks to
// containerd, and to the launcher as package proto says; [Engine] starts it when it is needed,
// and again when it died or hangs.
//
// What a box is made of exists only in the launcher's mount namespace and in its descriptors, and
// the shim sees neither. But a shim builds a container by running runc, and the name of that
// program is an option of the container. So the container names a symlink in a directory of its
// own, to which only root has access:
//
//	<state directory>/containerd/<container>/
//	    runc       what the shim runs: boxd-containerd while the box is born, then runc
//	    program    runc, until it takes the place of the other
//	    birth.sock where the launcher waits for boxd-containerd, until the box is born
//	    box        the box's directory: this symlink dangles when the box is gone
//	    state/     runc's
//
// boxd-containerd, run as "runc create" (package standin), gets descriptors of the launcher's
// mount namespace, of the box's network namespace and cgroups, and those that PID 1 inherits. It
// starts the real runc there. So nothing of a box is ever mounted where other processes of the
// host see it: if launcher, shim or containerd are killed at any moment of a birth, the box is not
// born, and no mount of it is left.
//
// Cgroups are the launcher's: the spec names none. For the rest of the box's life containerd only
// knows its state; when PID 1 ends, its record is deleted. A directory of a container exists as
// long as containerd may have a record of it. It is made in the directory of the box and then
// moved, so whoever is killed, it names its box as long as that exists. Whichever launcher finds
// the directory of a box that is gone has the record deleted, as soon as containerd answers.
package containerd
