package daemon

import (
	"os"

	"github.com/boxd/boxd/session"
)

// lockState makes this process the only daemon of the state directory. It comes
// before everything else, so that a second daemon disturbs nothing of the first.
func lockState(dir string, a account) (lock *os.File, err error) {
	err = asUser(a, func() error {
		lock, err = session.LockState(dir)
		return err
	})
	return lock, err
}
