package hostile

import (
	"os"
	"slices"
	"testing"
	"time"

	"github.com/boxd/boxd/engine/native/rpc"
	"github.com/boxd/boxd/internal/testutil"
	"golang.org/x/sys/unix"
)

// linger hands in descriptors whose close blocks: to be refused in a frame, to be lost because
// they are too many, and to be left unread. Each time the next client must be served at once.
func (a *attacker) linger() {
	for _, hand := range []func(fd int){
		func(fd int) { _ = a.conn.SendFDs(rpc.TypePing, 7, []byte("{}"), fd) },
		func(fd int) {
			// More than fits into a frame: the kernel closes descriptors that are not received.
			many := append(slices.Repeat([]int{int(os.Stdin.Fd())}, 252), fd)
			raw, err := a.sock.SyscallConn()
			if err != nil {
				panic(err)
			}
			_ = raw.Control(func(s uintptr) { _ = unix.Sendmsg(int(s), make([]byte, 12), unix.UnixRights(many...), nil, 0) })
		},
		func(fd int) {
			_ = a.conn.SendFDs(rpc.TypePing, 7, []byte("{}"), int(os.Stdin.Fd())) // ends the connection
			for range 20 {
				_ = a.conn.SendFDs(rpc.TypePing, 7, []byte("{}"), fd)
			}
		},
	} {
		for range 5 {
			a.dial()
			fd, stop, err := testutil.LingeringSocket()
			if err != nil {
				panic(err)
			}
			defer stop()
			hand(fd)
			go unix.Close(fd) // this takes an hour if the descriptor was refused
			a.conn.Close()
		}
	}
	began := time.Now()
	a.dial()
	if said := a.ask(rpc.TypePing, "{}"); said != "" {
		a.wrong("ping: %s", said)
	}
	if took := time.Since(began); took > 5*time.Second {
		a.wrong("descriptors that take long to close kept the next client waiting for %v", took)
	}
}

// TestLingeringDescriptors: the descriptors that a client sends cannot make the launcher wait.
func TestLingeringDescriptors(t *testing.T) {
	w := newWorld(t)
	w.start(w.plan.State, w.plan.UID)
	w.attack("linger")
}
