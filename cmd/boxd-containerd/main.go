// Boxd-containerd is a child of the launcher that speaks to containerd for it. It is a program
// of its own, and a module of its own, because the client of containerd and what comes with it
// would make up most of the launcher, which runs as root, and of the programs that embed boxd.
// People do not call it.
//
//	boxd-containerd ADDRESS STATE-DIR
//
// ADDRESS is the path of containerd's socket, STATE-DIR the state directory of the launcher. The
// launcher is at descriptor 3; the conversation is that of engine/containerd/proto. Shims of
// containerd run the program as well, in place of runc, see engine/containerd/standin.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/engine/containerd/proto"
	"github.com/boxd/boxd/engine/containerd/standin"
	"github.com/boxd/boxd/internal/version"
)

func main() {
	if standin.Called(os.Args) {
		os.Exit(standin.Main(os.Args))
	}
	if len(os.Args) == 2 && os.Args[1] == "version" {
		fmt.Println(version.Version)
		return
	}
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "boxd-containerd: %v\n", err)
		os.Exit(125)
	}
}

func run(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("arguments %q: boxd-containerd is started by boxd, not by hand", args)
	}
	conn, err := wire.FileConn(os.NewFile(proto.SocketFD, "launcher"))
	if err != nil {
		return err
	}
	conn.RefuseFDs() // no request carries any
	hello, err := json.Marshal(proto.Hello{Version: version.Version, Protocol: proto.Protocol})
	if err := errors.Join(err, conn.Send(proto.TypeHello, 0, hello)); err != nil {
		return err
	}
	s := &server{address: args[0], state: args[1]}
	for {
		frame, err := conn.Receive()
		if errors.Is(err, io.EOF) {
			return nil // requests in progress end with the process
		}
		if err != nil {
			return err
		}
		go func() {
			body, err := json.Marshal(s.answer(frame.Type, frame.Body))
			if err == nil {
				err = conn.Send(proto.TypeReply, frame.ID, body)
			}
			if err != nil {
				fmt.Fprintf(os.Stderr, "boxd-containerd: answering: %v\n", err)
				conn.Close() // the launcher starts another one
			}
		}()
	}
}
