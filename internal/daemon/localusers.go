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

// localUsers decides which users of this host may use a loopback listener that asks
// for no credentials. It is safe for concurrent use.
type localUsers struct {
	setting string // key of the listener, "listen" or "langbot.listen"
	remedy  string // how to make that listener ask for credentials
	uids    []int  // root, the user who started the daemon, listen_users
	gid     int    // the socket's group
	roots   []mountRoot
	log     *slog.Logger

	mu       sync.Mutex
	members  map[int]membership // what the user database said lately, by uid
	logged   time.Time          // when a refusal was logged last
	unlogged int                // refusals since then
}

// mountRoot is an allowed mount root, whose owner may use LangBot's door.
type mountRoot struct {
	path string
	// owner when the daemon started; -1: there was none. It counts where the daemon, which
	// is not root any more, cannot look.
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

// check is nil if the user uid may connect. unknown says why uid is not known.
func (l *localUsers) check(uid int, unknown error) error {
	var err error
	switch {
	case unknown != nil:
		err = fmt.Errorf("%s: the user who connects is not known: %w: %s, or use the daemon's Unix socket", l.setting, unknown, l.remedy)
	case !l.admits(uid):
		err = fmt.Errorf("%s: user %d may not connect through TCP without a token: add the user to listen_users, or %s", l.setting, uid, l.remedy)
	default:
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unlogged++
	if time.Since(l.logged) >= refusalPause { // strangers could fill the log
		l.log.Warn("refused a local user", "reason", err, "like_this", l.unlogged)
		l.logged, l.unlogged = time.Now(), 0
	}
	return err
}

func (l *localUsers) admits(uid int) bool {
	if uid == nobody {
		return false // the kernel reports so every user that it cannot name here, user_namespaces(7)
	}
	owns := func(r mountRoot) bool { return r.ownerNow() == uid }
	return slices.Contains(l.uids, uid) || slices.ContainsFunc(l.roots, owns) || l.isMember(uid)
}

// ownerNow is the owner, -1 without one. A root that somebody made after the daemon had
// started counts only if no stranger could have made it.
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

// isMember says whether the user database has the socket's group among the groups of
// the user.
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
		groups, _ := u.GroupIds() // without the primary one, if it fails
		gid := strconv.Itoa(l.gid)
		is = u.Gid == gid || slices.Contains(groups, gid)
	}
	l.members[uid] = membership{is, time.Now()}
	return is
}

// newLocalUsers is for the listener of the API.
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

// forLangbot are the users of LangBot's door: those of l, and the owners of roots. It is
// called before the daemon gives up root, which may be needed to look at roots.
func (l *localUsers) forLangbot(roots []string) *localUsers {
	second := &localUsers{setting: "langbot.listen", remedy: "set LANGBOT_BOX_CONTROL_TOKEN or langbot.token_file", uids: l.uids, gid: l.gid, log: l.log}
	for _, path := range roots {
		r := mountRoot{path: path, owner: -1}
		if info, err := os.Stat(path); err == nil {
			r.owner = int(info.Sys().(*syscall.Stat_t).Uid)
		}
		second.roots = append(second.roots, r)
	}
	return second
}

// starter is the user who started the daemon: through sudo(8), if root did.
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

// lookupUser finds the id of the user called name, or of the one that name is the
// number of.
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
		return 0, &engine.FieldError{Field: field, Value: spec.Quote(name), Rule: fmt.Sprintf("must not be user %d: the kernel reports every user that it cannot name as that one", nobody)}
	}
	return int(uid), nil
}
