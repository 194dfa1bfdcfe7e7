package skills

import (
	"errors"
	"math"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// owner is a skill: its place and its name.
type owner struct {
	place
	name string
}

var errNotIts = errors.New("another skill has its name")

// owners returns all skills, with each name once, and calls lost for the others.
func (o *op) owners(lost func(place, error)) ([]owner, error) {
	claims, err := o.claims(lost)
	if err != nil {
		return nil, err
	}
	var owners []owner
	index := make(map[string]int)
	for _, c := range claims {
		i, taken := index[c.name]
		switch {
		case !taken:
			index[c.name] = len(owners)
			owners = append(owners, c)
		case o.tree.before(c.dir, owners[i].dir, c.name):
			lost(owners[i].place, errNotIts)
			owners[i] = c
		default:
			lost(c.place, errNotIts)
		}
	}
	return owners, nil
}

// claims returns all skills with the name that the store gave them, or else the one in their entry
// file, if the store gave it to no other directory.
func (o *op) claims(lost func(place, error)) ([]owner, error) {
	places, err := o.places()
	if err != nil {
		return nil, err
	}
	var claims []owner
	for _, p := range places {
		if err := o.ctx.Err(); err != nil {
			return nil, err
		}
		name, err := o.tree.name(p)
		if dir, given := o.tree.given[name]; err == nil && given && dir != p.dir {
			err = errNotIts
		}
		if err != nil {
			lost(p, err)
			continue
		}
		claims = append(claims, owner{p, name})
	}
	return claims, nil
}

// silent is a lost function for calls whose losses the log has already.
func silent(place, error) {}

// before decides between two directories that claim a name that the store gave to neither: p has
// it if before returns true, else q. It compares their ancestors just below the lowest directory
// that contains both: the one that bears the name wins, else the older one. A box cannot
// influence either: its own directory is a mount point to it, which it can neither rename nor
// replace, and no system call sets a birth time. A box controls everything deeper, which
// therefore does not count.
func (t *tree) before(p, q, name string) bool {
	as, bs := strings.Split(p, "/"), strings.Split(q, "/")
	i := 0
	for i < len(as) && i < len(bs) && as[i] == bs[i] {
		i++
	}
	if i == len(as) || i == len(bs) { // a box changed the tree during the search
		return len(as) < len(bs)
	}
	a, b := as[i], bs[i]
	if a == name || b == name {
		return a == name
	}
	up := path.Join(as[:i]...)
	if x, y := t.born(path.Join(up, a)), t.born(path.Join(up, b)); x != y {
		return x < y
	}
	return a < b
}

// born returns the birth time of a directory in nanoseconds, and the latest possible one if the
// file system does not record it.
func (t *tree) born(dir string) int64 {
	d, err := t.root.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return math.MaxInt64
	}
	defer d.Close()
	st, err := linux.Statx(d, unix.STATX_BTIME)
	if err != nil || st.Mask&unix.STATX_BTIME == 0 {
		return math.MaxInt64
	}
	return st.Btime.Sec*1e9 + int64(st.Btime.Nsec)
}
