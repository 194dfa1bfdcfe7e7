package daemon

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"os/user"
	"strconv"
	"strings"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/linux"
	"golang.org/x/sys/unix"
)

// If the user defaultUser does not exist, the daemon gets an ID that nothing else on the host has.
// It is from the range above the IDs of boxes (engine/native/launcher) and below 2^31, which no
// convention assigns (systemd's UIDS-GIDS.md). The group of the state directory, which root owns,
// records the ID, so that later daemons own the content of the directory.
const (
	firstDedicated = 0x7fff0000
	lastDedicated  = 0x7ffffffe
)

// dedicatedAccount returns the ID that the state directory dir was given to, or chooses one.
func dedicatedAccount(dir string) (account, error) {
	id, kept, err := keptID(dir)
	if err != nil {
		return account{}, err
	}
	taken, err := takenIDs()
	if err != nil {
		return account{}, fmt.Errorf("choosing a user id for the daemon: %w", err)
	}
	if kept {
		if by := taken(id); by != "" {
			return account{}, &engine.FieldError{Field: "user", Value: strconv.Itoa(id),
				Rule: fmt.Sprintf("is the ID of the daemon of %q, but is now also in use by %s; free it, or name a user and chown the directory", dir, by)}
		}
		return account{uid: id, gid: id, dedicated: true}, nil
	}
	// Each directory has its own ID, because daemons must not trust each other. It is the same at
	// each try, so that an administrator can give a directory to it.
	path := fnv.New32a()
	path.Write([]byte(dir))
	const count = lastDedicated - firstDedicated + 1
	first := int(path.Sum32() % count)
	for i := range count {
		if id := firstDedicated + (first+i)%count; taken(id) == "" {
			return account{uid: id, gid: id, dedicated: true}, nil
		}
	}
	return account{}, &engine.FieldError{Field: "user", Value: `""`, Rule: "must be set: there is no user " + defaultUser + ", and no ID above those of boxes is free (see /etc/subuid)"}
}

// keptID returns the dedicated ID that a state directory was given to, if any. Only root can give a
// directory that root owns to a group.
func keptID(dir string) (id int, kept bool, err error) {
	var st unix.Stat_t
	err = unix.Lstat(dir, &st)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, adviseState(dir, fmt.Errorf("state directory: %w", &fs.PathError{Op: "lstat", Path: dir, Err: err}))
	}
	kept = st.Uid == 0 && st.Mode&unix.S_IFMT == unix.S_IFDIR && st.Gid >= firstDedicated && st.Gid <= lastDedicated
	return int(st.Gid), kept, nil
}

// takenIDs returns a function that names the owner of an ID, or "" if it is free.
func takenIDs() (func(id int) string, error) {
	var ranges []idRange
	for _, path := range []string{"/etc/subuid", "/etc/subgid"} {
		text, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		more, err := parseIDRanges(string(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		ranges = append(ranges, more...)
	}
	return func(id int) string {
		if u, err := user.LookupId(strconv.Itoa(id)); err == nil {
			return "user " + spec.Quote(u.Username)
		}
		if g, err := user.LookupGroupId(strconv.Itoa(id)); err == nil {
			return "group " + spec.Quote(g.Name)
		}
		for _, r := range ranges {
			if id >= r.first && id-r.first < r.count {
				return "subordinate ids of " + spec.Quote(r.owner)
			}
		}
		return ""
	}, nil
}

// idRange is a line of /etc/subuid or /etc/subgid, subuid(5).
type idRange struct {
	owner        string
	first, count int
}

func parseIDRanges(text string) (ranges []idRange, err error) {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Split(line, ":")
		if len(fields) != 3 {
			return nil, fmt.Errorf("line %s: must be OWNER:FIRST:COUNT", spec.Quote(line))
		}
		first, err := strconv.ParseUint(fields[1], 10, 32)
		count, cerr := strconv.ParseUint(fields[2], 10, 32)
		if err := errors.Join(err, cerr); err != nil {
			return nil, fmt.Errorf("line %s: %w", spec.Quote(line), err)
		}
		ranges = append(ranges, idRange{fields[0], int(first), int(count)})
	}
	return ranges, nil
}

// checkOwner refuses a state directory in which a daemon of another user has served: this daemon
// could not open its files. Old versions of boxd served as the user nobody.
func checkOwner(dir string, a account) error {
	f, err := os.OpenFile(dir+"/daemon.lock", unix.O_PATH|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	defer f.Close()
	st, err := linux.Fstat(f)
	if err != nil {
		return err
	}
	if int(st.Uid) == a.uid || st.Uid == 0 {
		return nil
	}
	return &engine.FieldError{Field: "state_dir", Value: spec.Quote(dir),
		Rule: fmt.Sprintf("belongs to a daemon of user %d, and this one is user %d: end every process of user %d, then chown -hR --from=%d:%d %d:%d %s, or choose another --state-dir",
			st.Uid, a.uid, st.Uid, st.Uid, st.Gid, a.uid, a.gid, dir)}
}
