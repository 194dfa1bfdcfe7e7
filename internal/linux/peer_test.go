package linux

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestPeerOf(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	p, err := PeerOf(s)
	if err != nil || p.UID != os.Getuid() || p.GID != os.Getgid() || p.PID != os.Getpid() {
		t.Errorf("%+v, %v", p, err)
	}
	want, _ := os.Getgroups()
	slices.Sort(want)
	got := slices.Sorted(slices.Values(p.Groups))
	if !slices.Equal(got, want) {
		t.Errorf("groups %v, want %v", got, want)
	}
	s.Close()
	if _, err := PeerOf(s); err == nil {
		t.Error("a closed socket has a peer")
	}
}
