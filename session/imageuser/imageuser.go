// Package imageuser finds the user of an image by number, for sessions and for boxd run. Names are looked up in the files
// passwd and group of the image, which only a box opens. It neither makes nor keeps boxes.
package imageuser

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/files"
	"github.com/boxd/boxd/images"
)

// MaxAccounts bounds the files passwd and group of an image in bytes; what is beyond is not read.
const MaxAccounts = 1 << 20

// Number returns the user that text means without a look into the image: nothing, root, 0 or UID:GID. It returns false for
// others, an UID alone included, whose group is that of its line in passwd.
func Number(text string) (u engine.User, ok bool, err error) {
	user, group, hasGroup := strings.Cut(text, ":")
	if !hasGroup && (user == "" || user == "0" || user == "root") {
		return u, true, nil
	}
	uid, okUID := parseID(cmp.Or(user, "0"))
	gid, okGID := parseID(group)
	if !okUID || !okGID {
		return u, false, nil
	}
	u = engine.User{UID: uid, GID: gid}
	return u, true, refuse(text, u)
}

// Spec is the box in which Find looks: it has only the image.
func Spec(image string, layers []string) engine.Spec {
	return engine.Spec{Image: image, Layers: layers, Limits: engine.Limits{Memory: 64 << 20, PIDs: 16}}
}

// Find returns the user that text means in the image of box, which Number has returned false for. Errors about what the image
// has are images.ErrRefused.
func Find(ctx context.Context, box engine.Box, text string) (engine.User, error) {
	user, group, hasGroup := strings.Cut(text, ":")
	passwd, err := read(ctx, box, "/etc/passwd")
	var groups []byte
	if err == nil && hasGroup {
		groups, err = read(ctx, box, "/etc/group")
	}
	if err != nil {
		return engine.User{}, err
	}
	u, err := find(cmp.Or(user, "0"), group, hasGroup, passwd, groups)
	if err == nil {
		err = refuse(text, u)
	}
	return u, err
}

func refuse(text string, u engine.User) error {
	if u.Validate("user") == nil {
		return nil
	}
	return fmt.Errorf("%w: its user %s is %d:%d, and a box has the ids 0 to %d: ask for another user", images.ErrRefused, spec.Quote(text), u.UID, u.GID, spec.MaxID)
}

// read reads whole lines of a file. A missing file is empty.
func read(ctx context.Context, box engine.Box, name string) ([]byte, error) {
	var out bytes.Buffer
	_, err := files.Read(ctx, box, files.Options{}, name, 0, MaxAccounts, &out)
	switch {
	case err == nil, errors.Is(err, fs.ErrNotExist):
	case errors.Is(err, files.ErrRefused):
		return nil, fmt.Errorf("%w: looking up its user: %w", images.ErrRefused, errors.New(err.Error())) // its kind is not that of the request
	default:
		return nil, fmt.Errorf("looking up its user: %w", err)
	}
	if out.Len() < MaxAccounts {
		return out.Bytes(), nil
	}
	return out.Bytes()[:bytes.LastIndexByte(out.Bytes(), '\n')+1], nil
}

// find finds the user and group of an image in its files passwd and group, whose lines it does not
// trust. An id needs no line; without a group, that of the user's line counts, or 0.
func find(user, group string, hasGroup bool, passwd, groups []byte) (u engine.User, err error) {
	uid, numeric := parseID(user)
	u.UID = uid
	found := false
	for line := range bytes.Lines(passwd) {
		f := strings.Split(strings.TrimRight(string(line), "\r\n"), ":")
		if len(f) < 4 {
			continue
		}
		id, okUID := parseID(f[2])
		gid, okGID := parseID(f[3])
		if okUID && okGID && (numeric && id == uid || !numeric && f[0] == user) {
			u, found = engine.User{UID: id, GID: gid}, true
			break
		}
	}
	if !found && !numeric {
		return u, fmt.Errorf("%w: its user %s is not in its /etc/passwd: ask for a user by number", images.ErrRefused, spec.Quote(user))
	}
	if !hasGroup {
		return u, nil
	}
	if gid, ok := parseID(group); ok {
		u.GID = gid
		return u, nil
	}
	for line := range bytes.Lines(groups) {
		f := strings.Split(strings.TrimRight(string(line), "\r\n"), ":")
		if len(f) < 3 || f[0] != group {
			continue
		}
		if gid, ok := parseID(f[2]); ok {
			u.GID = gid
			return u, nil
		}
	}
	return u, fmt.Errorf("%w: its group %s is not in its /etc/group: ask for a user by number", images.ErrRefused, spec.Quote(group))
}

// parseID reads a user or group id, which may be out of the range of a box.
func parseID(s string) (int, bool) {
	n, err := strconv.ParseUint(s, 10, 32)
	return int(n), err == nil
}
