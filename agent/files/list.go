package files

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"os"
	"slices"

	"github.com/boxd/boxd/agent/files/proto"
	"github.com/boxd/boxd/internal/linux"
	"golang.org/x/sys/unix"
)

// list describes the first files of a directory, sorted by name.
func (o *operation) list() (proto.Reply, error) {
	most, err := o.number(0, 10)
	if err != nil {
		return proto.Reply{}, err
	}
	dir, err := open(o.path, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return proto.Reply{}, err
	}
	defer dir.Close()
	names, truncated, err := firstNames(dir, int(most))
	if err != nil {
		return proto.Reply{}, err
	}
	w := bufio.NewWriterSize(o.out, 64<<10)
	out := json.NewEncoder(w)
	for _, name := range names {
		i, err := entry(dir, name)
		if errors.Is(err, unix.ENOENT) {
			continue // removed meanwhile
		}
		if err != nil {
			return proto.Reply{}, &stepError{"describing", name, err}
		}
		if err := out.Encode(i); err != nil {
			return proto.Reply{}, err
		}
	}
	st, err := linux.Fstat(dir)
	if err != nil {
		return proto.Reply{}, err
	}
	return proto.Reply{Info: info(st), Truncated: truncated}, w.Flush()
}

// entry describes one name, without following a symlink.
func entry(dir *os.File, name string) (*proto.Info, error) {
	st, err := linux.StatAt(dir, name)
	if err != nil {
		return nil, err
	}
	i := info(st)
	i.Name = []byte(name)
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		target, err := linux.ReadlinkAt(dir, name)
		if err != nil {
			return nil, err
		}
		i.Target = []byte(target)
	}
	return i, nil
}

// firstNames returns the names of dir that sort first, at most as many as most says, and
// whether there are more. It reads all names, but holds at most twice as many as it returns
// and one batch.
func firstNames(dir *os.File, most int) (names []string, more bool, err error) {
	cut := func() {
		slices.Sort(names)
		if len(names) > most {
			names, more = slices.Delete(names, most, len(names)), true
		}
	}
	for {
		batch, err := dir.Readdirnames(1024)
		names = append(names, batch...)
		if len(names) > 2*most+1024 {
			cut()
		}
		if errors.Is(err, io.EOF) {
			cut()
			return names, more, nil
		}
		if err != nil {
			return nil, false, err
		}
	}
}
