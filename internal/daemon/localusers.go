package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
)

// localUsers decides which users of this host may use a loopback listener without credentials. It is
// safe for concurrent use.
type localUsers struct {
	setting string // key of the listener, "listen" or "langbot.listen"
	remedy  string // how to make that listener ask for credentials
	uids    []int  // root, the user who started the daemon, listen_users
	gid     int    // the socket's group
	roots   []mountRoot
	log     *slog.Logger

	mu       sync.Mutex
	members  map[int]membership // recent answers of the user database, by uid
	logged   time.Time          // of the last refusal in the log
	unlogged int                // refusals since then
}

// mountRoot is an allowed mount root, whose owner may use LangBot's door.
type mountRoot struct {
	path string
	// owner when the daemon started; -1: the directory did not exist. It counts if the daemon,
	// which is no longer root, cannot look.
	owner int
}

type membership struct {
	is   bool
	read time.Time
}

// Bounds of what localUsers remembers and logs.
const (
	membershipAge  = 30 * time.Second
	maxMemberships = 1024
	refusalPause   = 10 * time.Second
)

// check returns nil if the user uid may connect. If the user could not be found out, unknown says
// why.
func (l *localUsers) check(uid int, unknown error) error {
	var err error
	switch {
	case unknown != nil:
		err = fmt.Errorf("%s: the user who connects is unknown: %w: %s, or use the daemon's Unix socket", l.setting, unknown, l.remedy)
	case !l.admits(uid):
		err = fmt.Errorf("%s: user %d may not connect through TCP without a token: add the user to listen_users, or %s", l.setting, uid, l.remedy)
	default:
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unlogged++
	if time.Since(l.logged) >= refusalPause { // any local user could fill the log
		l.log.Warn("refused a local user", "reason", err, "like_this", l.unlogged)
		l.logged, l.unlogged = time.Now(), 0
	}
	return err
}

func (l *localUsers) admits(uid int) bool {
	if uid == nobody {
		return false // every user without an ID in this user namespace looks like that, user_namespaces(7)
	}
	owns := func(r mountRoot) bool { return r.ownerNow() == uid }
	return slices.Contains(l.uids, uid) || slices.ContainsFunc(l.roots, owns) || l.isMember(uid)
}

// ownerNow returns the owner, or -1. A directory that was created after the daemon started counts
// only if no other user could have created it.
func (r mountRoot) ownerNow() int {
	info, err := os.Stat(r.path)
	if err != nil {
		return r.owner
	}
	if r.owner < 0 {
		parent, err := os.Stat(filepath.Dir(r.path))
		if err != nil || parent.Mode().Perm()&0o022 != 0 {
			return -1
		}
	}
	return int(info.Sys().(*syscall.Stat_t).Uid)
}

// isMember reports whether the user is in the socket's group, according to the user database.
func (l *localUsers) isMember(uid int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if m, ok := l.members[uid]; ok && time.Since(m.read) < membershipAge {
		return m.is
	}
	if l.members == nil || len(l.members) >= maxMemberships {
		l.members = map[int]membership{}
	}
	is := false
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		groups, _ := u.GroupIds() // if it fails, only the primary group counts
		gid := strconv.Itoa(l.gid)
		is = u.Gid == gid || slices.Contains(groups, gid)
	}
	l.members[uid] = membership{is, time.Now()}
	return is
}

// newLocalUsers returns the users of the API's listener.
func (d *daemon) newLocalUsers(gid int) (*localUsers, error) {
	l := &localUsers{setting: "listen", remedy: "configure tokens (tokens_file)", uids: []int{0, d.starter()}, gid: gid, log: d.log}
	for i, name := range d.Config.ListenUsers {
		uid, err := lookupUser(fmt.Sprintf("listen_users[%d]", i), name)
		if err != nil {
			return nil, err
		}
		l.uids = append(l.uids, uid)
	}
	return l, nil
}

// forLangbot returns the users of LangBot's door: those of l, and the owners of roots. It is called
// before the daemon gives up root, because it looks at roots.
func (l *localUsers) forLangbot(roots []string) *localUsers {
	users := &localUsers{setting: "langbot.listen", remedy: "set LANGBOT_BOX_CONTROL_TOKEN or langbot.token_file", uids: l.uids, gid: l.gid, log: l.log}
	for _, path := range roots {
		r := mountRoot{path: path, owner: -1}
		if info, err := os.Stat(path); err == nil {
			r.owner = int(info.Sys().(*syscall.Stat_t).Uid)
		}
		users.roots = append(users.roots, r)
	}
	return users
}

// starter returns the user who started the daemon, possibly with sudo(8).
func (d *daemon) starter() int {
	if !d.root {
		return os.Getuid()
	}
	uid, err := strconv.ParseUint(os.Getenv("SUDO_UID"), 10, 31)
	if err != nil {
		return 0
	}
	return int(uid)
}

// lookupUser returns the ID of the user that name is the name or the number of.
func lookupUser(field, name string) (int, error) {
	uid, err := strconv.ParseUint(name, 10, 31)
	if err != nil {
		u, err := user.Lookup(name)
		if _, unknown := errors.AsType[user.UnknownUserError](err); unknown {
			return 0, &engine.FieldError{Field: field, Value: spec.Quote(name), Rule: "must be a user of this host, or its number"}
		}
		if err != nil {
			return 0, fmt.Errorf("%s: user %q: %w", field, name, err)
		}
		if uid, err = strconv.ParseUint(u.Uid, 10, 31); err != nil {
			return 0, fmt.Errorf("%s: user %q: id in the user database: %w", field, name, err)
		}
	}
	if uid == nobody {
		return 0, &engine.FieldError{Field: field, Value: spec.Quote(name), Rule: fmt.Sprintf("must not be user %d, because every user without an ID of its own looks like that one", nobody)}
	}
	return int(uid), nil
}
