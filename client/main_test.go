package client_test

import (
	"testing"

	"github.com/boxd/boxd/internal/testutil"
	"github.com/boxd/boxd/test/daemon"
)

// socket is the socket of the daemon that the Examples use.
var socket string

func TestMain(m *testing.M) { testutil.MainExamples(m, setUp) }

func setUp(boxd, boxdInit, dir string) (tearDown func() error, err error) {
	d, err := daemon.Start(daemon.Config{Boxd: boxd, Init: boxdInit, Dir: dir, Args: []string{"--stop-sessions"}})
	if err != nil {
		return nil, err
	}
	socket = d.Socket()
	return d.Stop, nil
}
