package volumes

import (
	"os"
)

// LimitTree bounds the directory dir of the host, with all that is in it already,
// by project quota. 0 for both takes the limit away.
func (s *Store) LimitTree(dir *os.File, bytes, inodes int64) error { return ErrNoQuota }

// LimitOf returns the project limit that dir is under, with By "project-quota" and
// no name; ok is false if it is under none. 0 means no limit of that kind.
func LimitOf(dir *os.File) (st State, ok bool, err error) { return State{}, false, nil }
