package native

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"path/filepath"
	"strings"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native/rpc"
	"github.com/boxd/boxd/internal/linux"
	"golang.org/x/sys/unix"
)

// SocketName is the name of a launcher service's socket in its state directory.
const SocketName = rpc.SocketName

// errNotNow marks an error after which the launcher may answer a moment later.
var errNotNow = errors.New("try again")

// dialService connects to a launcher service and checks that it is of this build.
func dialService(ctx context.Context, socket string) (*wire.Conn, error) {
	conn, h, err := greetService(ctx, socket)
	if err != nil {
		return nil, err
	}
	if err := checkHello(h, socket); err != nil {
		conn.Close()
		if h.Busy {
			// The other client may just have died.
			return nil, fmt.Errorf("%w: %w", err, errNotNow)
		}
		return nil, err
	}
	return conn, nil
}

// greetService connects to a launcher service and waits for its greeting.
func greetService(ctx context.Context, socket string) (*wire.Conn, rpc.Hello, error) {
	sock, err := connectUnix(ctx, socket)
	if err != nil {
		err = fmt.Errorf("%w: connecting to launcher: %w", engine.ErrNoLauncher, err)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.EAGAIN) {
			err = fmt.Errorf("%w: %w", err, errNotNow)
		}
		return nil, rpc.Hello{}, err
	}
	conn := wire.NewConn(sock)
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	h, err := hello(conn)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		conn.Close()
		return nil, h, fmt.Errorf("%w: %q did not answer as a launcher: %w: %w", engine.ErrNoLauncher, socket, err, errNotNow)
	}
	return conn, h, nil
}

// connectUnix connects to a socket whose path may be longer than the 107 bytes of an
// address (unix(7)).
func connectUnix(ctx context.Context, path string) (*net.UnixConn, error) {
	dir, err := linux.Openat2(nil, filepath.Dir(path), unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY})
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", linux.FdPath(dir)+"/"+filepath.Base(path))
	if err != nil {
		return nil, err
	}
	return conn.(*net.UnixConn), nil
}

// randomID returns an ID for a box whose Spec has none.
func randomID() string { return "box-" + strings.ToLower(rand.Text()) }
