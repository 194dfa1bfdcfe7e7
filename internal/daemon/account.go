package daemon

import (
	"errors"
	"fmt"
	"os/user"
	"strconv"

	"github.com/boxd/boxd/engine"
)

// DefaultUser is whom packages create for the daemon.
const DefaultUser = "boxd"

// nobody is what the kernel and every distribution use for a user without rights.
const nobody = 65534

// account is the user that the daemon serves as.
type account struct {
	name     string
	uid, gid int
	// fallback: DefaultUser does not exist here, and nobody is used in its place.
	fallback bool
}

// lookupAccount finds the user called name; "" is DefaultUser, or nobody where
// that does not exist. Root is refused: what faces clients is not root.
func lookupAccount(name string) (account, error) {
	byDefault := name == ""
	if byDefault {
		name = DefaultUser
	}
	u, err := user.Lookup(name)
	var unknown user.UnknownUserError
	switch {
	case errors.As(err, &unknown) && byDefault:
		return account{name: "nobody", uid: nobody, gid: nobody, fallback: true}, nil
	case errors.As(err, &unknown):
		return account{}, &engine.FieldError{Field: "user", Value: engine.Quote(name), Rule: "must be a user of this host; useradd --system makes one"}
	case err != nil:
		return account{}, fmt.Errorf("user %q: %w", name, err)
	}
	uid, uidErr := strconv.Atoi(u.Uid)
	gid, gidErr := strconv.Atoi(u.Gid)
	if err := errors.Join(uidErr, gidErr); err != nil {
		return account{}, fmt.Errorf("user %q: ids in the user database: %w", name, err)
	}
	if uid == 0 || gid == 0 {
		return account{}, &engine.FieldError{Field: "user", Value: engine.Quote(name), Rule: "must be neither root nor in group root: only the launcher is"}
	}
	return account{name: name, uid: uid, gid: gid}, nil
}

// lookupGroup finds the id of the group called name, or of the one that name is
// the number of.
func lookupGroup(name string) (int, error) {
	if gid, err := strconv.ParseUint(name, 10, 31); err == nil {
		return int(gid), nil
	}
	g, err := user.LookupGroup(name)
	var unknown user.UnknownGroupError
	switch {
	case errors.As(err, &unknown):
		return 0, &engine.FieldError{Field: "socket group", Value: engine.Quote(name), Rule: "must be a group of this host, or its number"}
	case err != nil:
		return 0, fmt.Errorf("group %q: %w", name, err)
	}
	return strconv.Atoi(g.Gid)
}
