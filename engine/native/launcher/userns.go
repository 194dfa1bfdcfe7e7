package launcher

import (
	"fmt"
	"os"
)

// ForbidUserNamespaces sets the limit of user namespaces within the one of the
// calling process to none. It is called in the init stage, which is root in the
// new user namespace of a box and still sees the host's /proc (namespaces(7):
// the files in /proc/sys/user govern the opener's user namespace).
//
// So clone3, whose flags a seccomp filter cannot see, gives a command no user
// namespace, and without one no other namespace either. A filter for commands
// alone, which answers clone3 with ENOSYS as Docker's does, would have to be
// compiled by the kernel for every single command.
func ForbidUserNamespaces() error {
	const path = "/proc/sys/user/max_user_namespaces"
	if err := os.WriteFile(path, []byte("0"), 0); err != nil {
		return fmt.Errorf("forbidding user namespaces: %w", err)
	}
	return nil
}
