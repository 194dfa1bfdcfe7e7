package daemon

import (
	"errors"
	"net"

	"github.com/coreos/go-systemd/v22/activation"
)

// activated are the sockets that systemd opened for this process,
// sd_listen_fds(3); none without it. TCP ones obey the rule of those we open.
func activated(authenticated bool) ([]net.Listener, error) {
	all, err := activation.Listeners()
	if err != nil {
		return nil, err
	}
	for _, l := range all {
		switch {
		case l == nil:
			err = errors.Join(err, errors.New("socket activation: a descriptor is no stream socket"))
		default:
			if at, ok := l.Addr().(*net.TCPAddr); ok {
				err = errors.Join(err, checkTCP(at, authenticated))
			}
		}
	}
	if err == nil {
		return all, nil
	}
	for _, l := range all {
		if l != nil {
			l.Close()
		}
	}
	return nil, err
}
