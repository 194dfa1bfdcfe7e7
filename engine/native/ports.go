package native

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native/rpc"
	"github.com/boxd/boxd/internal/linux"
	"golang.org/x/sys/unix"
)

// maxPortsFile bounds how much is read of one table, which has about 150 bytes for each
// socket. A box may have as many sockets as its processes have descriptors.
const maxPortsFile = 16 << 20

// diagTime bounds the wait for a launcher, without which Ports takes longer.
const diagTime = time.Second

// Ports implements engine.LiveBox. The answer comes from the kernel and not from a process of the
// box: for TCP over a socket in the box's network, which the launcher opens, and otherwise from
// the tables in /proc of PID 1. For the table of TCP connections the kernel walks those of the whole
// host, which takes 10 to 50 ms.
func (b *box) Ports() ([]engine.Port, error) {
	diag := b.openDiag()
	defer diag.Close() // a nil file is fine
	var ports []engine.Port
	for _, protocol := range []string{"tcp", "tcp6", "udp", "udp6"} {
		var listeners []linux.Listener
		err := error(unix.ENOENT)
		if diag != nil && strings.HasPrefix(protocol, "tcp") {
			listeners, err = linux.TCPListeners(diag, protocol == "tcp6")
		}
		if err != nil { // also if the kernel has no module tcp_diag
			listeners, err = b.listeners(protocol)
		}
		if err == nil {
			err = b.alive()
		}
		if err != nil {
			return nil, fmt.Errorf("listing ports of box %q: %w", b.id, err)
		}
		for _, l := range listeners {
			p := engine.Port{Protocol: protocol, Address: l.Addr().String(), Port: int(l.Port())}
			if !slices.Contains(ports, p) { // SO_REUSEPORT
				ports = append(ports, p)
			}
		}
	}
	return ports, nil
}

// openDiag has the launcher open a socket of sock_diag(7) in the network of the box. It returns nil if
// that is not possible. The caller closes it.
func (b *box) openDiag() *os.File {
	ctx, cancel := context.WithTimeout(context.Background(), diagTime)
	defer cancel()
	files, err := b.engine.link.call(ctx, rpc.TypeDiag, rpc.Box{ID: b.id}, nil)
	if err != nil || len(files) != 1 {
		linux.CloseAll(files)
		return nil
	}
	return files[0]
}

// listeners reads one table of PID 1.
func (b *box) listeners(protocol string) ([]linux.Listener, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/net/%s", b.pid, protocol))
	if errors.Is(err, fs.ErrNotExist) && b.alive() == nil {
		return nil, nil // a host without IPv6
	}
	if err != nil {
		return nil, errors.Join(b.alive(), err)
	}
	defer f.Close()
	list, err := linux.ParseListeners(io.LimitReader(f, maxPortsFile), protocol)
	// If PID 1 is still alive, the number was its own the whole time.
	if aerr := b.alive(); aerr != nil {
		return nil, aerr
	}
	return list, err
}

// alive returns an error if PID 1 has ended.
func (b *box) alive() error {
	raw, err := b.pidfd.SyscallConn()
	if err != nil {
		return err
	}
	fds := []unix.PollFd{{Events: unix.POLLIN}}
	err = raw.Control(func(fd uintptr) {
		fds[0].Fd = int32(fd)
		_ = linux.Retry(func() error { _, err := unix.Poll(fds, 0); return err })
	})
	if err != nil || fds[0].Revents != 0 {
		return fmt.Errorf("PID 1 has ended: %w", engine.ErrBoxLost)
	}
	return nil
}
