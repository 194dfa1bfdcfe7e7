package daemon

import (
	"bytes"
	"log"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/boxd/boxd/config"
	"github.com/boxd/boxd/policy"
)

// TestLeadsTo: which connections of boxes would reach a listener of the daemon.
func TestLeadsTo(t *testing.T) {
	own := []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	pool := policy.PortPool{First: 20000, Last: 20009, Address: netip.MustParseAddr("127.0.0.1")}
	for _, c := range []struct {
		listener, to string
		own          []netip.Addr
		want         bool
	}{
		{"127.0.0.1:80", "127.0.0.1:80", own, true}, {"127.0.0.1:80", "127.9.9.9:80", own, true}, {"127.0.0.1:80", "[::1]:80", own, true}, {"127.0.0.1:80", "127.0.0.1:81", own, false},
		{"0.0.0.0:80", "192.0.2.1:80", own, true}, {"[::]:80", "[::ffff:192.0.2.1]:80", own, true}, {"127.0.0.1:80", "192.0.2.1:80", own, true},
		{"198.51.100.1:80", "198.51.100.1:80", own, true}, {"127.0.0.1:80", "192.0.2.2:80", own, false}, {"0.0.0.0:80", "0.0.0.0:80", own, true},
		{"127.0.0.1:80", "127.0.0.1:20000", own, true}, {"127.0.0.1:80", "192.0.2.1:20009", own, true}, {"127.0.0.1:80", "127.0.0.1:20010", own, false}, {"127.0.0.1:80", "192.0.2.2:20000", own, false},
		{"127.0.0.1:80", "192.0.2.2:80", nil, true}, {"127.0.0.1:80", "192.0.2.2:81", nil, false}, // every address may be the host's
	} {
		l := net.TCPAddrFromAddrPort(netip.MustParseAddrPort(c.listener))
		if got := leadsTo(netip.MustParseAddrPort(c.to), []*net.TCPAddr{l}, pool, c.own); got != c.want {
			t.Errorf("%+v: %t", c, got)
		}
	}
}

// TestNetworkFiles: connections of boxes leave the rest of the daemon what it needs.
func TestNetworkFiles(t *testing.T) {
	for _, c := range []struct {
		have, need uint64
		want       int
	}{{1000, 100, 500}, {1000, 700, 300}, {1000, 990, 250}, {1000, 5000, 250}, {20_000, 156_000, 5000}, {0, 0, 0}} {
		if got := networkFiles(c.have, c.need); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
	// The default quotas, in a process that root started.
	c := config.Default()
	c.Network = config.NetworkProxy
	need := filesNeeded(c)
	if got := networkFiles(wantedFiles, need); got < wantedFiles/4 || uint64(got)+need > wantedFiles {
		t.Errorf("%d for connections of boxes, %d for the rest, of %d", got, need, wantedFiles)
	}
	without := c
	without.Network = config.NetworkOff
	if filesNeeded(without) >= need {
		t.Error("the listeners in boxes are not counted")
	}
}

// TestStandardLog: what libraries log is one line of the daemon's log, at level debug.
func TestStandardLog(t *testing.T) {
	out, flags := log.Writer(), log.Flags()
	defer func() { log.SetOutput(out); log.SetFlags(flags) }()
	var b bytes.Buffer
	level := new(slog.LevelVar)
	catchStandardLog(NewLogger(&b, "text", level))
	log.Printf("Unsolicited response received on idle HTTP channel starting with %s", "HTTP/1.1 200\nlevel=ERROR msg=forged")
	if b.Len() != 0 {
		t.Errorf("%q", b.String())
	}
	level.Set(slog.LevelDebug)
	log.Print("one\ntwo")
	if got := b.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "level=DEBUG") {
		t.Errorf("%q", got)
	}
}
