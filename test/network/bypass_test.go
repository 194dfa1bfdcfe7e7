package network

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/testutil"
	"github.com/boxd/boxd/test/daemon"
)

//go:embed testdata/attacks.py
var attacks string

// Addresses at which daemons of these tests listen besides the socket of their API. The ports are
// those of attacks.py.
const (
	apiAddress     = "127.0.0.1:8421"
	langbotAddress = "127.0.0.1:8422"
	previewAddress = "127.0.0.1:8423"
	publishedPort  = 8430 // the first one of the pool
)

// listeners configure them.
var listeners = fmt.Sprintf("listen: %s\nlangbot: {listen: %q}\npreview: {url: \"http://preview.localhost:8423\", listen: %q}\n", apiAddress, langbotAddress, previewAddress)

// profiles of the daemons of these tests.
const profiles = `
  names:
    network: true
    network_rules:
      public: false
      allow: [good.example, "*.wild.example", "six.example", "raw.example:7000"]
      deny: [denied.wild.example]
  addresses:
    network: true
    network_rules: {public: true}
  opened:
    network: true
    network_rules:
      public: false
      allow: ["127.0.0.0/8:1-65535", "127.0.0.1:1-65535", "93.184.1.2:1-65535", "loop.example:1-65535"]
`

// startDaemon runs a daemon with a network, profiles and more lines of configuration.
func startDaemon(t *testing.T, more string) (*daemon.Daemon, *client.Client) {
	t.Helper()
	testutil.RequireRoot(t)
	dir := testutil.ReachableDir(t, "")
	file := filepath.Join(dir, "config.yaml")
	text := "network: proxy\n" + listeners + "profiles:" + profiles + more
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return daemon.ForTest(t, daemon.Config{Dir: dir, Args: []string{"--config", file}})
}

// session is a session of a daemon that uses a profile, with room for many processes.
func session(profile string) *apitypes.SessionSpec {
	s := &apitypes.SessionSpec{}
	s.Profile = profile
	s.PIDs, s.Memory = new(int64(256)), new(spec.Size(512<<20))
	return s
}

// run is how a test runs attacks: in a box of a daemon, or of "boxd run". It returns what
// the script prints.
type run func(t *testing.T, names []string) string

// said is what an attack has read.
type said struct {
	Name, Said string
	Took       float64 // seconds
}

func (f run) attack(t *testing.T, names []string) (list []said) {
	t.Helper()
	for line := range strings.Lines(f(t, names)) {
		var s said
		if err := json.Unmarshal([]byte(line), &s); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		list = append(list, s)
	}
	if len(list) != len(names) {
		t.Errorf("%d of %d attacks ran", len(list), len(names))
	}
	return list
}

// group is a part of the table of attacks, under the rules of one profile.
type group struct {
	profile  string
	flags    []string // of boxd run, for the same rules; nil: not run there
	prefixes []string
	// may reports whether an attack may reach a server so.
	may func(hit) bool
	// names are all that the resolver may be asked for; nil: every name.
	names []string
}

var groups = []group{
	{"names", []string{"--allow", "good.example", "--allow", "*.wild.example", "--allow", "six.example", "--allow", "raw.example:7000", "--deny", "denied.wild.example"},
		[]string{"name ", "canonical ", "request:", "smuggled", "tunnel ", "tls:", "socks:", "http on", "port ", "dns:", "around:", "redirect: evil", "redirect: file", "curl "},
		func(h hit) bool {
			what, rest, _ := strings.Cut(h.what, " ")
			host, _, _ := strings.Cut(rest, " ")
			port := h.at.Port()
			return isGood(h.at.Addr()) && (port == 80 || port == 443) && (what == "tcp" || host == "good.example")
		}, []string{"good.example"}},
	{"addresses", []string{"--deny", "denied.wild.example"},
		[]string{"address ", "smtp:", "chained", "rebinding:", "redirect: metadata", "redirect: loopback", "around:"},
		func(h hit) bool {
			return isGood(h.at.Addr()) && !slices.Contains([]uint16{25, 465, 587}, h.at.Port()) || h.at.String() == resolver+":53" // asked by boxd
		}, nil},
	{"addresses", nil, []string{"rebinding alone"}, func(h hit) bool { return h.at.Addr().String() == goodAddr }, nil},
	{"opened", nil, []string{"opened"}, func(hit) bool { return false }, []string{"loop.example"}},
}

// every is n, more with -short, and 1 in the long form.
func every(n int) int {
	switch {
	case testutil.Full():
		return 1
	case testing.Short():
		return 8
	}
	return n
}

func isGood(a netip.Addr) bool {
	return slices.ContainsFunc(goodRanges, func(p netip.Prefix) bool { return p.Contains(a) })
}

// check runs the attacks of g, and their controls. Of the attacks that do not depend on the
// kernel it runs one of every so many.
func (g group) check(t *testing.T, f run, every int) {
	var all []string
	if err := json.Unmarshal([]byte(f(t, []string{"list"})), &all); err != nil {
		t.Fatal(err)
	}
	var names, controls []string
	for i, name := range all {
		switch {
		case !slices.ContainsFunc(g.prefixes, func(p string) bool { return strings.HasPrefix(name, p) }):
		case i%every > 0 && !strings.HasPrefix(name, "around:") && !strings.HasSuffix(name, "+"):
		case strings.HasSuffix(name, "+"):
			controls = append(controls, name)
		default:
			names = append(names, name)
		}
	}
	t.Logf("%d attacks, %d controls", len(names), len(controls))
	world.take()
	for _, s := range f.attack(t, names) {
		if s.Took > 10 {
			t.Logf("%s took %v s: %.100q", s.Name, s.Took, s.Said)
		}
		text := s.Said
		if strings.HasPrefix(s.Name, "smuggled") { // the request in front arrives
			text = strings.ReplaceAll(text, "REACHED "+goodAddr+":80 http://good.example/front", "")
			text = strings.ReplaceAll(text, "REACHED ["+goodAddr6+"]:80 http://good.example/front", "")
		}
		if strings.Contains(text, "REACHED") || strings.Contains(text, "hung or died") {
			t.Errorf("%s: %s", s.Name, s.Said)
		}
	}
	hits, asked := world.take()
	for _, h := range hits {
		if !g.may(h) {
			t.Errorf("an attack reached %v", h)
		}
	}
	for _, name := range asked {
		if g.names != nil && !slices.Contains(g.names, name) {
			t.Errorf("the resolver was asked for %q", name)
		}
	}
	for _, s := range f.attack(t, controls) {
		if !strings.Contains(s.Said, "REACHED") {
			t.Errorf("%s: what is allowed does not work: %s", s.Name, s.Said)
		}
	}
	world.take()
}

func input(names []string) string {
	b, err := json.Marshal(names)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// TestBypassDaemon: no attack of the table gets around the proxy of a daemon.
func TestBypassDaemon(t *testing.T) {
	_, c := startDaemon(t, fmt.Sprintf("publish: {ports: %d-%d}\n", publishedPort, publishedPort+1))
	// What the other box has is not in reach of the first one, nor is the port that it publishes.
	wish := session("addresses")
	wish.Publish = []spec.PublishWish{{Port: 8123, Host: publishedPort}}
	if _, err := c.Start(t.Context(), "neighbour", apitypes.ProcessRequest{ID: "p", Argv: []string{"python3", "-c", neighbour}, Session: wish, Ready: &apitypes.Ready{Port: 8123}, Wait: true}); err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{apiAddress, langbotAddress, previewAddress, fmt.Sprint("127.0.0.1:", publishedPort)} {
		c, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatalf("nothing listens where the boxes are to be refused: %v", err)
		}
		c.Close()
	}
	for _, g := range groups {
		t.Run(g.profile+" "+g.prefixes[0], func(t *testing.T) {
			g.check(t, func(t *testing.T, names []string) string {
				t.Helper()
				r, err := c.Exec(t.Context(), g.profile, apitypes.ExecRequest{Argv: []string{"python3", "-c", attacks}, Stdin: input(names), Timeout: apitypes.Duration(patience), Session: session(g.profile)})
				if err != nil {
					t.Fatal(err)
				}
				if r.Status != 0 {
					t.Fatalf("status %d: %s", r.Status, r.Stderr)
				}
				return r.Stdout
			}, every(1))
		})
	}
}

const neighbour = `
import socket
l = socket.create_server(("127.0.0.1", 8123))
while True:
    c, _ = l.accept()
    c.sendall(b"REACHED the other box\n")
    c.close()
`

// TestBypassRun: nor around that of "boxd run".
func TestBypassRun(t *testing.T) {
	testutil.RequireRoot(t)
	boxd, init := testutil.BuildBinaries(t)
	state := testutil.ReachableDir(t, "/run")
	for _, g := range groups {
		if g.flags == nil {
			continue
		}
		t.Run(g.profile+" "+g.prefixes[0], func(t *testing.T) {
			g.check(t, func(t *testing.T, names []string) string {
				t.Helper()
				args := append([]string{"run", "--network", "proxy", "--timeout", fmt.Sprint(patience), "--pids", "256", "--memory", "512M", "-i"}, g.flags...)
				cmd := exec.CommandContext(t.Context(), boxd, append(args, "--", "python3", "-c", attacks)...)
				cmd.Env = append(os.Environ(), "BOXD_STATE_DIR="+state, "BOXD_INIT="+init)
				cmd.Stdin = strings.NewReader(input(names))
				var stderr strings.Builder
				cmd.Stderr = &stderr
				out, err := cmd.Output()
				if err != nil {
					t.Fatalf("%v: %s", err, stderr.String())
				}
				return string(out)
			}, every(3)) // the proxy is the same
		})
	}
}
