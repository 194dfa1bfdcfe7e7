package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/linux"
	"github.com/coreos/go-systemd/v22/activation"
	"golang.org/x/sys/unix"
)

// maxSocketPath is the length that fits into sockaddr_un with its final zero, unix(7).
const maxSocketPath = 107

// listenUnix opens the socket at path with mode, for the group gid (-1: this process's
// group). It replaces a stale socket, on which no process listens.
func listenUnix(path string, gid int, mode fs.FileMode) (*net.UnixListener, error) {
	if err := checkSocket(path); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	if err := removeStale(path); err != nil {
		return nil, err
	}
	// No other user may connect before owner and mode are set.
	umask := unix.Umask(0o177)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	unix.Umask(umask)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	if err := shareSocket(path, gid, mode); err != nil {
		l.Close()
		return nil, fmt.Errorf("socket: %w", err)
	}
	return l, nil
}

// checkSocket refuses a path where no socket can be created.
func checkSocket(path string) error {
	if len(path) > maxSocketPath {
		return &engine.FieldError{Field: "socket.path", Value: spec.Quote(path), Rule: fmt.Sprintf("must have at most %d bytes, a limit of the kernel; choose a shorter --state-dir or --socket", maxSocketPath)}
	}
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() != fs.ModeSocket {
		return &engine.FieldError{Field: "socket.path", Value: spec.Quote(path), Rule: "is no socket; remove it or name another with --socket"}
	}
	return nil
}

// shareSocket sets the group and the mode of the socket at path. It refuses anything else that may
// have taken its place.
func shareSocket(path string, gid int, mode fs.FileMode) error {
	f, err := os.OpenFile(path, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := linux.Fstat(f)
	if err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return fmt.Errorf("%q was replaced by something else", path)
	}
	if gid >= 0 {
		if err := linux.Fchownat(f, "", -1, gid); err != nil {
			return err
		}
	}
	return os.Chmod(linux.FdPath(f), mode)
}

// removeStale removes the socket that a dead daemon left at path. If a server answers there, that
// is an error.
func removeStale(path string) error {
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		conn.Close()
	}
	if !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, fs.ErrNotExist) { // it may be alive
		return &engine.FieldError{Field: "socket.path", Value: spec.Quote(path), Rule: "belongs to a server that is running; stop it or name another with --socket"}
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("stale socket: %w", err)
	}
	return nil
}

// listenTCP opens a TCP address. Without authentication, it must be a loopback address.
func listenTCP(addr string, authenticated bool) (*net.TCPListener, error) {
	at, err := tcpAddress(addr, authenticated)
	if err != nil {
		return nil, err
	}
	l, err := net.ListenTCP("tcp", at)
	if err != nil {
		return nil, fmt.Errorf("listen %q: %w", addr, err)
	}
	return l, nil
}

// tcpAddress parses an address, and refuses one that checkTCP refuses.
func tcpAddress(addr string, authenticated bool) (*net.TCPAddr, error) {
	if addr != "" && !strings.Contains(addr, ":") {
		return nil, &engine.FieldError{Field: "listen", Value: spec.Quote(addr), Rule: "must be HOST:PORT"}
	}
	at, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen %q: %w", addr, err)
	}
	return at, checkTCP(at, authenticated)
}

// checkTCP refuses an address that other hosts can reach, unless clients are authenticated.
func checkTCP(at *net.TCPAddr, authenticated bool) error {
	if authenticated || at.IP.IsLoopback() {
		return nil
	}
	return &engine.FieldError{Field: "listen", Value: spec.Quote(at.String()),
		Rule: "must be a loopback address such as 127.0.0.1:8420, or clients must be known: set tokens_file, or tls.client_ca with tls.cert and tls.key"}
}

// activated returns the sockets that systemd opened for this process, sd_listen_fds(3). The rule for
// TCP addresses holds for them, too.
func activated(authenticated bool) ([]net.Listener, error) {
	all, err := activation.Listeners()
	if err != nil {
		return nil, err
	}
	for _, l := range all {
		if l == nil {
			err = errors.Join(err, errors.New("socket activation: a descriptor is not a stream socket"))
		} else if at, ok := l.Addr().(*net.TCPAddr); ok {
			err = errors.Join(err, checkTCP(at, authenticated))
		}
	}
	if err == nil {
		return all, nil
	}
	for _, l := range all {
		if l != nil {
			l.Close()
		}
	}
	return nil, err
}
