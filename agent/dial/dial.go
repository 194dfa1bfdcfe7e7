// Package dial connects to a port of a box from inside, as an ordinary command of the box: in
// its network namespace, with the rights and limits of the command's user. So the caller
// needs no way of its own into the namespace.
//
// Like package agent/files it is no security boundary, and the caller does not trust what it
// receives.
package dial

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"syscall"
	"time"
)

// connectTimeout bounds a connection attempt on the loopback, where an answer is immediate
// unless the queue of the listener is full.
const connectTimeout = 3 * time.Second

// Main connects to TCP port args[0] of the loopback, sends stdin, and writes to stdout what
// it receives. It ends with the connection, and returns the exit status.
func Main(args []string) int {
	if err := run(args, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func run(args []string, in io.Reader, out io.Writer) error {
	if len(args) != 1 {
		return fmt.Errorf("arguments %q: a port is expected", args)
	}
	conn, err := loopback(args[0])
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := io.Copy(conn, in); err != nil {
		return err
	}
	_, err = io.Copy(out, conn)
	return err
}

// loopback connects to port of 127.0.0.1, or else of ::1.
func loopback(port string) (net.Conn, error) {
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return nil, fmt.Errorf("port %q: %w", port, err)
	}
	conn, err := net.DialTimeout("tcp", net.JoinHostPort("127.0.0.1", port), connectTimeout)
	if err == nil {
		return conn, nil
	}
	conn, err6 := net.DialTimeout("tcp", net.JoinHostPort("::1", port), connectTimeout)
	if err6 == nil {
		return conn, nil
	}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		err = errno // the message below names the port
	}
	return nil, fmt.Errorf("connecting to port %s: %w", port, err)
}
