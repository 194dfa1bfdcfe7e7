package daemon

import (
	"cmp"
	"errors"
	"fmt"
	"os/user"
	"strconv"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
)

// defaultUser is the user that packages create for the daemon.
const defaultUser = "boxd"

// nobody is the user of programs that should own no files. Several programs run as this user, and
// each of them could pretend to be the daemon.
const nobody = 65534

// account is the user that the daemon serves as.
type account struct {
	name     string
	uid, gid int
	// dedicated means that the user database has no such user; see dedicatedAccount.
	dedicated bool
}

func (a account) String() string {
	if a.name == "" || a.dedicated {
		return strconv.Itoa(a.uid)
	}
	return fmt.Sprintf("%s (%d)", a.name, a.uid)
}

// lookupAccount returns the account of the user name. An empty name means the dedicated ID of the
// state directory dir, otherwise defaultUser, otherwise a new ID for dir. It refuses root, because
// the process that faces clients must not be root, and the user nobody.
func lookupAccount(name, dir string) (account, error) {
	byDefault := name == ""
	if byDefault {
		if _, kept, err := keptID(dir); kept || err != nil {
			return dedicatedAccount(dir)
		}
		name = defaultUser
	}
	u, err := user.Lookup(name)
	_, unknown := errors.AsType[user.UnknownUserError](err)
	switch {
	case unknown && byDefault:
		return dedicatedAccount(dir)
	case unknown:
		return account{}, &engine.FieldError{Field: "user", Value: spec.Quote(name), Rule: "must be a user of this host; useradd --system makes one"}
	case err != nil:
		return account{}, fmt.Errorf("user %q: %w", name, err)
	}
	uid, uidErr := strconv.Atoi(u.Uid)
	gid, gidErr := strconv.Atoi(u.Gid)
	if err := errors.Join(uidErr, gidErr); err != nil {
		return account{}, fmt.Errorf("user %q: ids in the user database: %w", name, err)
	}
	if uid == 0 || gid == 0 {
		return account{}, &engine.FieldError{Field: "user", Value: spec.Quote(name), Rule: "must be neither root nor in group root: only the launcher is"}
	}
	return account{name: name, uid: uid, gid: gid}, refuseNobody(name, uid)
}

// refuseNobody refuses to serve as user nobody.
func refuseNobody(name string, uid int) error {
	if uid != nobody {
		return nil
	}
	return &engine.FieldError{Field: "user", Value: spec.Quote(cmp.Or(name, strconv.Itoa(uid))),
		Rule: "must not be nobody, because other programs run as that user: leave it out for an ID of boxd's own, or create a user for boxd with useradd --system"}
}

// lookupGroup returns the ID of the group that name is the name or the number of.
func lookupGroup(name string) (int, error) {
	if gid, err := strconv.ParseUint(name, 10, 31); err == nil {
		return int(gid), nil
	}
	g, err := user.LookupGroup(name)
	if _, unknown := errors.AsType[user.UnknownGroupError](err); unknown {
		return 0, &engine.FieldError{Field: "socket.group", Value: spec.Quote(name), Rule: "must be a group of this host, or its number"}
	}
	if err != nil {
		return 0, fmt.Errorf("group %q: %w", name, err)
	}
	return strconv.Atoi(g.Gid)
}
