// Package volumes manages directories of limited size: the kernel enforces how many bytes
// and files they may hold.
//
// A volume is a named directory below the data directory of a [Store]. If the file system
// of the data directory has project quota (ext4, xfs), a volume is a directory with its own
// project; otherwise it is an ext4 image on a loop device. [Store.LimitTree] limits an
// existing directory of the host, which is possible only with project quota.
//
// The package does not know boxes or sessions, knows only one user and group as owner, and
// does not decide who may have how much.
package volumes
