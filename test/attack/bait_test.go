package attack

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// setBait puts things on the host that no box may reach, and returns them as
// arguments of a probe. They are gone with the test.
func setBait(t *testing.T) []string {
	t.Helper()
	port := strconv.Itoa(listen(t))
	bait := []string{
		"port=" + port,
		"abstract=" + listenAbstract(t),
		"shmkey=" + strconv.Itoa(sharedMemory(t)),
		"shmfile=" + filepath.Base(tempFile(t, "/dev/shm")),
		"marker=" + tempFile(t, "/var/tmp"),
	}
	if addr := hostAddress(); addr != "" {
		bait = append(bait, "address="+addr)
	}
	return bait
}

// listen takes one port on all addresses of the host, and accepts until the test
// ends: the backlog does that.
func listen(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.Addr().(*net.TCPAddr).Port
}

func listenAbstract(t *testing.T) string {
	t.Helper()
	name := fmt.Sprintf("boxd-attack-%d-%s", os.Getpid(), t.Name())
	l, err := net.Listen("unix", "@"+name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return name
}

func sharedMemory(t *testing.T) (key int) {
	t.Helper()
	key = 0x626f7864 ^ os.Getpid() // "boxd"
	id, err := unix.SysvShmGet(key, 4096, unix.IPC_CREAT|unix.IPC_EXCL|0o666)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := unix.SysvShmCtl(id, unix.IPC_RMID, nil); err != nil {
			t.Error(err)
		}
	})
	return key
}

// tempFile is a file that everyone may read.
func tempFile(t *testing.T, dir string) string {
	t.Helper()
	f, err := os.CreateTemp(dir, "boxd-attack-")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	t.Cleanup(func() { os.Remove(f.Name()) })
	if _, err := f.WriteString("a secret of the host\n"); err != nil {
		t.Fatal(err)
	}
	if err := f.Chmod(0o644); err != nil {
		t.Fatal(err)
	}
	return f.Name()
}

// hostAddress is an address of the host that is not loopback, "" if it has none.
func hostAddress() string {
	addrs, _ := net.InterfaceAddrs()
	for _, a := range addrs {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.IsGlobalUnicast() {
			return ip.IP.String()
		}
	}
	return ""
}
