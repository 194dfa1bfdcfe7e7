package client_test

import (
	"errors"
	"os"
	"testing"

	"github.com/boxd/boxd/internal/testutil"
	"github.com/boxd/boxd/test/daemon"
)

// socket is the socket of the daemon that the Examples use.
var socket string

func TestMain(m *testing.M) { testutil.MainExamples(m, setUp) }

func setUp(boxd, boxdInit string) (tearDown func() error, err error) {
	dir, err := os.MkdirTemp("", "boxd-test-client-")
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(dir, 0o711); err != nil {
		return nil, err
	}
	d, err := daemon.Start(daemon.Config{Boxd: boxd, Init: boxdInit, Dir: dir, Args: []string{"--stop-sessions"}})
	if err != nil {
		return nil, err
	}
	socket = d.Socket()
	return func() error { return errors.Join(d.Stop(), os.RemoveAll(dir)) }, nil
}
