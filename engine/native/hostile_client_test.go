package native

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native/rpc"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/testutil"
	"golang.org/x/sys/unix"
)

// client is a client of a launcher; the test plays it.
type client struct {
	t        *testing.T
	sock     *os.File
	conn     *wire.Conn
	launcher *exec.Cmd
	state    string
}

// newClient starts a launcher. At the end of the test, the launcher must exit without error
// and leave nothing in its state directory.
func newClient(t *testing.T) *client {
	t.Helper()
	testutil.RequireRoot(t)
	_, initPath := testutil.BuildBinaries(t)
	state, err := os.MkdirTemp("/run", "boxd-hostile-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(state, 0o711); err != nil {
		t.Fatal(err)
	}
	ours, theirs, err := linux.SocketPair()
	if err != nil {
		t.Fatal(err)
	}
	cmd, err := launch(Options{InitPath: initPath, StateDir: state}, theirs)
	theirs.Close()
	if err != nil {
		t.Fatal(err)
	}
	c := &client{t: t, sock: dup(t, ours), launcher: cmd, state: state}
	if c.conn, err = wire.FileConn(ours); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.end)
	if h, err := hello(c.conn); err != nil || h.Error != "" {
		t.Fatalf("hello: %+v, %v", h, err)
	}
	return c
}

// end hangs up and checks what the launcher leaves.
func (c *client) end() {
	c.conn.Close()
	c.sock.Close()
	within(c.t, "the end of the launcher", func() {
		if err := c.launcher.Wait(); err != nil {
			c.t.Errorf("launcher: %v", err)
		}
	})
	for _, pattern := range []string{"run-*", "ids/*"} {
		if left, _ := filepath.Glob(filepath.Join(c.state, pattern)); len(left) > 0 {
			c.t.Errorf("left: %q", left)
		}
	}
	os.RemoveAll(c.state)
}

// ask sends a request, whose body may be invalid, and returns the error of the reply, or "".
func (c *client) ask(typ byte, body string, reply any) string {
	c.t.Helper()
	if err := c.conn.Send(typ, 5, []byte(body)); err != nil {
		c.t.Fatalf("type %d: %v", typ, err)
	}
	answer := rpc.Reply{Body: reply}
	within(c.t, "an answer", func() {
		f, err := c.conn.Receive()
		if err != nil {
			c.t.Errorf("type %d, %.60q: %v", typ, body, err)
			return
		}
		defer f.Close()
		if f.Type != rpc.TypeReply || f.ID != 5 {
			c.t.Errorf("type %d, %.60q: answer of type %d, id %d", typ, body, f.Type, f.ID)
		}
		if err := json.Unmarshal(f.Body, &answer); err != nil {
			c.t.Error(err)
		}
	})
	if answer.Error != nil {
		return answer.Error.Message
	}
	return ""
}

// create makes a box.
func (c *client) create() rpc.Created {
	c.t.Helper()
	body, err := json.Marshal(rpc.Create{Spec: engine.Spec{}.WithDefaults()})
	if err != nil {
		c.t.Fatal(err)
	}
	var created rpc.Created
	if said := c.ask(rpc.TypeCreate, string(body), &created); said != "" {
		c.t.Fatal(said)
	}
	return created
}

// TestHostileClientAsks: the launcher refuses an invalid request in one line, and continues.
func TestHostileClientAsks(t *testing.T) {
	c := newClient(t)
	id := c.create().ID
	box := `"ID":"` + id + `"`
	for _, r := range []struct {
		name string
		typ  byte
		body string
	}{
		{"empty", rpc.TypeCreate, ""},
		{"no JSON", rpc.TypeCreate, "{"},
		{"binary", rpc.TypeCreate, "\x00\xff\xfe"},
		{"another kind of JSON", rpc.TypeCreate, `[1,2,3]`},
		{"deep JSON", rpc.TypeCreate, strings.Repeat("[", 100_000)},
		{"a bad spec", rpc.TypeCreate, `{"Spec":{"ID":"../../etc"}}`},
		{"a size that is none", rpc.TypeCreate, `{"Spec":{"Limits":{"Memory":1e400}}}`},
		{"a user that is none", rpc.TypeCreate, `{"Spec":{"User":{"UID":-1}}}`},
		{"a box that is there", rpc.TypeCreate, `{"Spec":{` + box + `}}`},
		{"a relative mount", rpc.TypeCreate, `{"Spec":{"Mounts":[{"Source":"etc","Target":"/x"}]}}`},
		{"the state directory as a mount", rpc.TypeCreate, `{"Spec":{"Mounts":[{"Source":"` + c.state + `","Target":"/x"}]}}`},
		{"slots of nothing", rpc.TypeSlots, `{"ID":"nobody","Count":1}`},
		{"too many slots", rpc.TypeSlots, `{` + box + `,"Count":1000000}`},
		{"negative slots", rpc.TypeSlots, `{` + box + `,"Count":-1}`},
		{"kill of nothing", rpc.TypeKill, `{` + box + `,"Slot":"../../init","Signal":9}`},
		{"kill with an empty slot", rpc.TypeKill, `{` + box + `,"Slot":"","Signal":9}`},
		{"terminal of a stranger", rpc.TypePTY, `{` + box + `,"User":{"UID":70000,"GID":-5}}`},
		{"terminal of nothing", rpc.TypePTY, `{"ID":""}`},
		{"a socket in the network of nothing", rpc.TypeDiag, `{"ID":"nobody"}`},
		{"sockets in the network of nothing", rpc.TypeSockets, `{"ID":"nobody","IPv4":1}`},
		{"too many sockets", rpc.TypeSockets, `{` + box + `,"IPv4":9223372036854775807,"IPv6":9223372036854775807}`},
		{"fewer sockets than none", rpc.TypeSockets, `{` + box + `,"IPv4":-1,"IPv6":2}`},
		{"a socket that listens on all addresses", rpc.TypeSockets, `{` + box + `,"Listen":["0.0.0.0:80"]}`},
		{"a socket that listens on another address", rpc.TypeSockets, `{` + box + `,"Listen":["[::ffff:10.0.0.1]:80"]}`},
		{"bad update", rpc.TypeUpdate, `{` + box + `,"Change":{"Detach":["../.."]}}`},
		{"update with a bad limit", rpc.TypeUpdate, `{` + box + `,"Change":{"Limits":{"Memory":1}}}`},
		{"an unknown type", 200, `{}`},
		{"the agent's types", wire.TypeSpawn, `{}`},
		{"a hello", rpc.TypeHello, `{}`},
		{"a reply", rpc.TypeReply, `{}`},
		{"bad remove", rpc.TypeRemove, `"`},
	} {
		said := c.ask(r.typ, r.body, nil)
		if said == "" || len(said) > 500 || strings.ContainsAny(said, "\n\x00") {
			t.Errorf("%s: %q, want one line", r.name, said)
		}
	}
	// A request without a reply gets none and does no harm.
	for typ := range 256 {
		if err := c.conn.Send(byte(typ), 0, []byte(`{"ID":"`+strings.Repeat("x", typ)+`","Used":["1","../2",""]}`)); err != nil {
			t.Fatal(err)
		}
	}
	if said := c.ask(rpc.TypeSlots, `{`+box+`,"Count":1}`, nil); said != "" {
		t.Errorf("the box that was there: %s", said)
	}
	if said := c.ask(rpc.TypeRemove, `{`+box+`}`, nil); said != "" {
		t.Errorf("removing it: %s", said)
	}
}

// TestHostileClientBreaksOff: a client that breaks the rules of the connection, or
// disconnects in the middle of a frame, loses its boxes, and the launcher exits without error.
func TestHostileClientBreaksOff(t *testing.T) {
	testutil.Long(t)
	for name, fault := range map[string]func(c *client){
		"hangs up":         func(*client) {},
		"a huge length":    func(c *client) { c.raw(bytes.Repeat([]byte{0xff}, wire.HeaderSize)) },
		"half a frame":     func(c *client) { c.raw([]byte{99, 0, 0, 0, rpc.TypeCreate}) },
		"noise":            func(c *client) { c.raw([]byte(strings.Repeat("GET / HTTP/1.1\r\n", 50))) },
		"descriptors":      func(c *client) { c.raw([]byte{1}, int(c.sock.Fd()), 0, 1, 2) },
		"many descriptors": func(c *client) { c.raw([]byte{1}, make([]int, 250)...) },
		"leaves during creation": func(c *client) {
			body, _ := json.Marshal(rpc.Create{Spec: engine.Spec{}.WithDefaults()})
			for id := range uint32(5) {
				_ = c.conn.Send(rpc.TypeCreate, id+1, body)
			}
		},
		"takes no answers": func(c *client) {
			for id := range uint32(2000) {
				if c.conn.Send(rpc.TypeSlots, id+1, []byte(`{"ID":"nobody"}`)) != nil {
					return
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newClient(t)
			c.create()
			fault(c)
		})
	}
}

func (c *client) raw(b []byte, fds ...int) {
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	if err := unix.Sendmsg(int(c.sock.Fd()), b, rights, nil, 0); err != nil {
		c.t.Error(err)
	}
	// The launcher need not wait for the end of the frame to notice the violation.
	within(c.t, "the launcher's end of the connection", func() {
		if len(b) < wire.HeaderSize && len(fds) == 0 {
			return // it may still become a frame
		}
		for {
			f, err := c.conn.Receive()
			if err != nil {
				if !errors.Is(err, io.EOF) && !errors.Is(err, unix.ECONNRESET) {
					c.t.Error(err)
				}
				return
			}
			f.Close()
		}
	})
}
