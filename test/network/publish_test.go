package network

import (
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/engine/spec"
)

// TestPublishAddress: a published port is open at the addresses that publish.address says, for this host
// and for others, and at no other one. No box reaches it through its proxy, wherever it is open.
func TestPublishAddress(t *testing.T) {
	const other4, other6 = "127.0.0.3", "::1"
	for _, r := range []struct {
		address      string // publish.address; empty: not configured
		here, abroad []string
	}{
		{"", []string{"127.0.0.1"}, nil},
		{"0.0.0.0", []string{"127.0.0.1", other4, hostAddr4}, []string{hostAddr4}},
		{"::", []string{"127.0.0.1", other4, other6, hostAddr4, hostAddr6}, []string{hostAddr4, hostAddr6}},
		{hostAddr4, []string{hostAddr4}, []string{hostAddr4}},
	} {
		t.Run("address "+r.address, func(t *testing.T) {
			if r.address != "" {
				t.Setenv("BOXD_PUBLISH_ADDRESS", r.address)
			}
			_, c := startDaemon(t, fmt.Sprintf("publish: {ports: %d-%d}\n", publishedPort, publishedPort))
			wish := session("addresses")
			wish.Publish = []spec.PublishWish{{Port: 8123}}
			if _, err := c.Start(t.Context(), "server", apitypes.ProcessRequest{ID: "p", Argv: []string{"python3", "-c", neighbour}, Session: wish, Ready: &apitypes.Ready{Port: 8123}, Wait: true}); err != nil {
				t.Fatal(err)
			}
			dial := func(from, address string, open []string) { // in the network namespace of its thread
				t.Helper()
				said, err := readFrom(address)
				switch {
				case slices.Contains(open, address):
					if err != nil || said != "REACHED the other box\n" {
						t.Errorf("%s, %s: %q, %v", from, address, said, err)
					}
				case !errors.Is(err, syscall.ECONNREFUSED):
					t.Errorf("%s, %s: %q, %v, want it refused", from, address, said, err)
				}
			}
			script := ""
			for _, address := range []string{"127.0.0.1", other4, other6, hostAddr4, hostAddr6} {
				dial("from this host", address, r.here)
				script += fmt.Sprintf("curl -sg --noproxy '' -x http://127.0.0.1:3128 http://%s/\n", published(address))
			}
			if err := world.inside(func() error {
				for _, address := range []string{"127.0.0.1", hostAddr4, hostAddr6} { // the first one is its own
					dial("from another host", address, r.abroad)
				}
				return nil
			}); err != nil {
				t.Error(err)
			}
			got := execute(t, c, "client", apitypes.ExecRequest{Shell: script, Session: session("opened")})
			if n := strings.Count(got.Stdout, "is a listener of boxd"); n != 5 || strings.Contains(got.Stdout, "REACHED") {
				t.Errorf("a box was refused %d of 5 addresses: %q", n, got.Stdout)
			}
		})
	}
}

func published(address string) string { return net.JoinHostPort(address, fmt.Sprint(publishedPort)) }

// readFrom returns what the published port says at an address.
func readFrom(address string) (string, error) {
	c, err := net.DialTimeout("tcp", published(address), patience)
	if err != nil {
		return "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	b, err := io.ReadAll(c)
	return string(b), err
}
