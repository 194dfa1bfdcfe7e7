// Package volumes keeps directories of limited size: the kernel refuses to let
// them grow beyond so many bytes and so many files.
//
// A volume is a named directory below the data directory of a [Store]. Where the
// file system of the data directory has project quota (ext4, xfs), a volume is a
// directory there with a project of its own; else it is an ext4 image of that size
// on a loop device. [Store.LimitTree] bounds a directory of the host that was there
// before, which only project quota can.
//
// The package does not know boxes, sessions or owners beyond one user and group,
// and does not decide who may have how much.
package volumes
