package netns

import (
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// Verify checks that no packet can leave the network namespace ns: it is not the namespace of
// the calling process, "lo" is up, no other interface is, and all routes lead to "lo". ns
// is a descriptor of the namespace or the pidfd of a process in it (Linux 5.8).
func Verify(ns *os.File) error {
	home, err := threadNS()
	if err == nil {
		err = in(ns, func() error { return verify(home) })
	}
	if err != nil {
		return fmt.Errorf("checking a network namespace: %w", err)
	}
	return nil
}

// verify checks the network namespace of the calling thread, which must not be home.
func verify(home nsID) error {
	own, err := threadNS()
	if err != nil {
		return err
	}
	if own == home {
		return errors.New("it is the namespace of this process")
	}
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer handle.Close()
	lo, err := verifyLinks(handle)
	if err != nil {
		return err
	}
	all := &netlink.Route{Table: unix.RT_TABLE_UNSPEC} // of all tables and both families
	routes, err := handle.RouteListFiltered(netlink.FAMILY_ALL, all, netlink.RT_FILTER_TABLE)
	if err != nil {
		return fmt.Errorf("listing routes: %w", err)
	}
	for _, r := range routes {
		if r.LinkIndex != lo || len(r.MultiPath) > 0 {
			return fmt.Errorf("route %v leaves loopback", r)
		}
	}
	return nil
}

// nsID identifies a namespace as long as it exists (namespaces(7)).
type nsID struct{ dev, ino uint64 }

// threadNS returns the network namespace of the calling thread. Except on throw-away
// threads, this is the namespace of the process. /proc/self would show that of the main
// thread, which may have exited.
func threadNS() (nsID, error) {
	const path = "/proc/thread-self/ns/net"
	var st unix.Stat_t
	if err := linux.Retry(func() error { return unix.Stat(path, &st) }); err != nil {
		return nsID{}, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return nsID{st.Dev, st.Ino}, nil
}

// verifyLinks returns the index of the loopback interface. Other interfaces may exist if
// they are down: with tunnel modules loaded, every new namespace has their fallback devices
// (net.core.fb_tunnels_only_for_init_net).
func verifyLinks(handle *netlink.Handle) (lo int, err error) {
	links, err := handle.LinkList()
	if err != nil {
		return 0, fmt.Errorf("listing interfaces: %w", err)
	}
	for _, link := range links {
		a := link.Attrs()
		up := a.Flags&net.FlagUp != 0
		switch {
		case a.Flags&net.FlagLoopback != 0 && up:
			lo = a.Index
		case a.Flags&net.FlagLoopback != 0:
			return 0, fmt.Errorf("interface %q is down", a.Name)
		case up:
			return 0, fmt.Errorf("interface %q is up, only loopback may be", a.Name)
		}
	}
	if lo == 0 {
		return 0, errors.New("it has no loopback interface")
	}
	return lo, nil
}
