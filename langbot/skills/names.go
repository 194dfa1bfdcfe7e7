package skills

import (
	"errors"
	"math"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// owner is a skill's place, and its name.
type owner struct {
	place
	name string
}

var errNotIts = errors.New("its name is that of another skill")

// owners are all skills, each name once. lost hears of the others.
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

// claims are all skills with the names that they were given, or else say they have, if
// that was given to nobody.
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

// silent is for owners, where the list has told the log already.
func silent(place, error) {}

// before says which of two directories that nobody was given a name for has it: seen from
// the directory that has both in it, the one below that is called like that, else the
// older one. Neither is a box's choice, to which the directory that it has is a mount
// point: it cannot be renamed or replaced from there, and the time of a birth cannot be
// set at all. What lies deeper is a box's choice, and does not count.
func (t *tree) before(p, q, name string) bool {
	as, bs := strings.Split(p, "/"), strings.Split(q, "/")
	i := 0
	for i < len(as) && i < len(bs) && as[i] == bs[i] {
		i++
	}
	if i == len(as) || i == len(bs) { // a box was at work while it was looked for skills
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

// born is when a directory was made, in nanoseconds; late where the file system does not
// know.
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
