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

// Verify makes sure that nothing can leave the network namespace ns: it is not
// that of the calling process, no interface but a running "lo" is up, and no
// route leads elsewhere. ns is as for [Loopback].
func Verify(ns *os.File) error {
	if err := in(ns, verify); err != nil {
		return fmt.Errorf("checking a network namespace: %w", err)
	}
	return nil
}

// verify works on the network namespace of the calling thread.
func verify() error {
	if err := notOurs(); err != nil {
		return err
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
	return verifyRoutes(handle, lo)
}

// notOurs compares the thread's namespace with that of the process.
func notOurs() error {
	var thread, process unix.Stat_t
	err := linux.Retry(func() error { return unix.Stat("/proc/thread-self/ns/net", &thread) })
	if err == nil {
		err = linux.Retry(func() error { return unix.Stat("/proc/self/ns/net", &process) })
	}
	if err != nil {
		return &os.PathError{Op: "stat", Path: "/proc/self/ns/net", Err: err}
	}
	if thread.Ino == process.Ino && thread.Dev == process.Dev {
		return errors.New("it is the one of this process")
	}
	return nil
}

// verifyLinks returns the index of the loopback interface. Others may exist if
// they are down: where tunnel modules are loaded, every new namespace has such
// devices (net.core.fb_tunnels_only_for_init_net).
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

// verifyRoutes looks at the routes of all tables and both families.
func verifyRoutes(handle *netlink.Handle, lo int) error {
	all := &netlink.Route{Table: unix.RT_TABLE_UNSPEC}
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
