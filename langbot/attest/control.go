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

// namespaces are the ones that each box has for itself. Cgroups are hidden from boxes in another
// way.
var namespaces = []string{"user", "mnt", "pid", "ipc", "uts", "net"}

// shared are directories of the host that reveal a box that has them in place of its own. They
// need not be writable. They detect this even if this process has its own directories for
// temporary files (PrivateTmp in systemd.exec(5)).
var shared = []string{"/", "/etc", "/home", "/run", "/tmp", "/var"}

// control is what this process has that a box must not reach, with the means to check that it can
// be reached at all.
type control struct {
	name string // random; the name of files and of a socket
	dir  string // the directory of the host that contains file
	file string // a marker file

	loopback *net.TCPListener
	abstract net.Listener

	namespaces map[string]string // as /proc/self/ns shows them
	dirs       map[string]string // device and inode of those of shared that exist
}

// Public are the directories, writable by everybody, in which a probe without a Scratch directory
// tries to create its marker file.
var Public = []string{os.TempDir(), "/tmp", "/var/tmp", "/dev/shm"}

// newControl sets the control up. The caller closes it, even after an error.
func newControl(scratch string) (*control, error) {
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
	scratches := Public
	if scratch != "" {
		scratches = []string{scratch}
	}
	var file *os.File
	var err error
	for _, c.dir = range scratches {
		file, err = os.OpenFile(filepath.Join(c.dir, c.name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		if err == nil {
			break
		}
	}
	if err != nil {
		return c, err
	}
	c.file = file.Name()
	if err := file.Close(); err != nil {
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

// visitor dials the listener, and reports whether somebody else did so before. The error is that
// not even this process can reach it.
func (c *control) visitor() (bool, error) {
	own, err := net.DialTimeout("tcp4", c.loopback.Addr().String(), time.Second)
	if err != nil {
		return false, err
	}
	defer own.Close()
	if err := c.loopback.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return false, err
	}
	first, err := c.loopback.Accept() // connections are accepted in order of arrival
	if err != nil {
		return false, err
	}
	defer first.Close()
	return first.RemoteAddr().String() != own.LocalAddr().String(), nil
}

// listed checks that this process sees its abstract socket, as the control for the box's view.
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

// has returns a directory of this host that the box has, too, or "". The lines come from the box:
// name, device and inode.
func (c *control) has(lines []string) string {
	for _, line := range lines {
		if dir, id, _ := strings.Cut(line, " "); id != "" && c.dirs[dir] == id {
			return dir
		}
	}
	return ""
}

// leaked returns the name on the host of a file that the box created, or "".
func (c *control) leaked() string {
	for _, dir := range []string{"/", "/usr", "/tmp", "/dev/shm", c.dir} {
		name := filepath.Join(dir, c.name+".box")
		if _, err := os.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
			return name
		}
	}
	return ""
}
