package attest

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// namespaces are those that a box has of its own. Its cgroups are hidden from it in
// another way.
var namespaces = []string{"user", "mnt", "pid", "ipc", "uts", "net"}

// shared are directories of the host by which a box is told that has them in place of its
// own. They need not be writable, and are the host's also if the directories for temporary
// files are this process's alone (PrivateTmp in systemd.exec(5)).
var shared = []string{"/", "/etc", "/home", "/run", "/tmp", "/var"}

// control is what this process has that a box must not reach, and how it is seen that
// it can be reached at all.
type control struct {
	name string // of files and a socket, drawn
	dir  string // a directory of the host in which marker is
	file string // the marker

	loopback *net.TCPListener
	abstract net.Listener

	namespaces map[string]string // as /proc/self/ns shows them
	dirs       map[string]string // those of shared that there are: device and inode
}

// Public are the directories, which everybody may write, that a probe tries for its marker without a directory of its own.
var Public = []string{os.TempDir(), "/tmp", "/var/tmp", "/dev/shm"}

// mark makes the marker in the first of dirs where that can be done.
func (c *control) mark(dirs []string) (err error) {
	for _, c.dir = range dirs {
		var file *os.File
		file, err = os.OpenFile(filepath.Join(c.dir, c.name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		if err == nil {
			c.file = file.Name()
			return file.Close()
		}
	}
	return err
}

func newControl(dir string) (*control, error) {
	dirs := Public
	if dir != "" {
		dirs = []string{dir}
	}
	c := &control{name: "boxd-attest-" + strings.ToLower(rand.Text()), namespaces: make(map[string]string), dirs: make(map[string]string)}
	for _, ns := range namespaces {
		link, err := os.Readlink("/proc/self/ns/" + ns)
		if err != nil {
			return c, err
		}
		c.namespaces[ns] = link
	}
	for _, dir := range shared {
		var st syscall.Stat_t
		if err := syscall.Stat(dir, &st); err == nil {
			c.dirs[dir] = fmt.Sprintf("%d:%d", st.Dev, st.Ino)
		} else if dir == "/" {
			return c, err
		}
	}
	if err := c.mark(dirs); err != nil {
		return c, err
	}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return c, err
	}
	c.loopback = l.(*net.TCPListener)
	if c.abstract, err = net.Listen("unix", "@"+c.name); err != nil {
		return c, err
	}
	return c, nil
}

func (c *control) close() {
	if c.file != "" {
		os.Remove(c.file)
	}
	if c.loopback != nil {
		c.loopback.Close()
	}
	if c.abstract != nil {
		c.abstract.Close()
	}
}

func (c *control) port() int { return c.loopback.Addr().(*net.TCPAddr).Port }

// visitor dials the listener and says whether somebody else did so before. An error: not
// even this process reaches it.
func (c *control) visitor() (bool, error) {
	own, err := net.DialTimeout("tcp4", c.loopback.Addr().String(), time.Second)
	if err != nil {
		return false, err
	}
	defer own.Close()
	if err := c.loopback.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return false, err
	}
	first, err := c.loopback.Accept() // in the order in which they came
	if err != nil {
		return false, err
	}
	defer first.Close()
	return first.RemoteAddr().String() != own.LocalAddr().String(), nil
}

// listed is the control of what a box sees of abstract sockets: this process sees it.
func (c *control) listed() error {
	p, err := os.ReadFile("/proc/self/net/unix")
	if err != nil {
		return err
	}
	if !strings.Contains(string(p), "@"+c.name) {
		return errors.New("an abstract socket cannot be seen")
	}
	return nil
}

// has returns a directory of this host that a box has as well, or "". The lines are
// the box's: name, device and inode.
func (c *control) has(lines []string) string {
	for _, line := range lines {
		if dir, id, _ := strings.Cut(line, " "); id != "" && c.dirs[dir] == id {
			return dir
		}
	}
	return ""
}

// leaked returns the name on the host of a file that the box made, or "".
func (c *control) leaked() string {
	for _, dir := range []string{"/", "/usr", "/tmp", "/dev/shm", c.dir} {
		name := filepath.Join(dir, c.name+".box")
		if _, err := os.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
			return name
		}
	}
	return ""
}
