package testutil

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// StuckFS mounts a file system whose server takes requests and never answers them, like a network file
// system whose server is gone: a process that looks up the returned path sleeps in the kernel, and
// SIGKILL does not wake it. release wakes all of them with an error; the test calls it at its end.
// Processes that start later see the mount.
func StuckFS(t testing.TB) (path string, release func()) {
	t.Helper()
	RequireRoot(t)
	// A plain descriptor, which blocks: the runtime's poller would miss the first request.
	fuse, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	RequireFeature(t, "fuse", err)
	root, err := os.MkdirTemp("", "boxd-stuck-")
	if err == nil {
		err = unix.Mount("boxd-stuck", root, "fuse", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("fd=%d,rootmode=40755,user_id=0,group_id=0,allow_other", fuse))
	}
	if err != nil {
		unix.Close(fuse)
		t.Fatalf("mounting a file system: %v", err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		serveStuck(fuse)
	}()
	release = sync.OnceFunc(func() {
		// MNT_FORCE ends the connection: all requests fail, and so does the server's read.
		if err := unix.Unmount(root, unix.MNT_FORCE|unix.MNT_DETACH); err != nil {
			t.Errorf("unmounting a file system: %v", err)
		}
		<-served
		unix.Close(fuse)
		if err := os.Remove(root); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(release)
	return filepath.Join(root, "missing"), release
}

// Requests of linux/fuse.h: the first one, and the one for attributes.
const (
	fuseInit    = 26
	fuseGetattr = 3
)

// serveStuck answers the first request and those for the attributes of the root, so that the mount is
// usable, and takes all others without an answer.
func serveStuck(fuse int) {
	buf := make([]byte, 1<<17) // at least FUSE_MIN_READ_BUFFER, and what INIT agrees on
	for {
		n, err := unix.Read(fuse, buf)
		if err == unix.EINTR || err == unix.ENOENT || err == unix.EAGAIN { // fuse(4): the request was taken back
			continue
		}
		if err != nil {
			return // unmounted
		}
		if n < 40 {
			continue
		}
		unique := binary.NativeEndian.Uint64(buf[8:])
		switch binary.NativeEndian.Uint32(buf[4:]) {
		case fuseInit:
			out := make([]byte, 64)                       // struct fuse_init_out
			binary.NativeEndian.PutUint32(out[0:], 7)     // major
			binary.NativeEndian.PutUint32(out[4:], 31)    // minor
			binary.NativeEndian.PutUint32(out[20:], 4096) // max_write
			answerFuse(fuse, unique, out)
		case fuseGetattr:
			out := make([]byte, 104)                            // struct fuse_attr_out
			binary.NativeEndian.PutUint64(out[16:], 1)          // ino
			binary.NativeEndian.PutUint32(out[16+60:], 0o40755) // mode
			binary.NativeEndian.PutUint32(out[16+64:], 2)       // nlink
			answerFuse(fuse, unique, out)
		}
	}
}

func answerFuse(fuse int, unique uint64, body []byte) {
	var b bytes.Buffer
	_ = binary.Write(&b, binary.NativeEndian, struct {
		Len    uint32
		Error  int32
		Unique uint64
	}{uint32(16 + len(body)), 0, unique})
	b.Write(body)
	_, _ = unix.Write(fuse, b.Bytes())
}
