package dial

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
)

func TestDial(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Logf("%s: %v", address, err) // a host without IPv6
			continue
		}
		_, port, _ := net.SplitHostPort(l.Addr().String())
		go func() {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			io.CopyN(conn, conn, 5)
		}()
		var out bytes.Buffer
		if err := run([]string{port}, strings.NewReader("hello"), &out); err != nil || out.String() != "hello" {
			t.Errorf("%s: %q, %v", address, &out, err)
		}
		l.Close()
		if err := run([]string{port}, strings.NewReader(""), &out); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%s, closed: %v", address, err)
		}
	}
	for _, args := range [][]string{nil, {"x"}, {"65536"}, {"-1"}, {"1", "2"}} {
		if run(args, strings.NewReader(""), io.Discard) == nil {
			t.Errorf("arguments %q are accepted", args)
		}
	}
}
