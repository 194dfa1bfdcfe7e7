package egress

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/boxd/boxd/engine/spec"
)

// Addresses returns the addresses of a box's loopback where its proxy listens.
func Addresses() []netip.AddrPort {
	loopback := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	return []netip.AddrPort{netip.AddrPortFrom(loopback, spec.ProxyPort), netip.AddrPortFrom(loopback, spec.SOCKSPort)}
}

// Environ returns env, a list of KEY=VALUE, with the variables that lead programs in a box to its
// proxy. Programs do not use it for the box itself, which is called hostname. "[::1]" is not among its names,
// because Python's httpx 0.28 refuses to start then, nor is 127.0.0.0/8, because a rule can open another
// loopback address of the host. It leaves out those that env sets, in either
// case: programs read one case or the other, and some both. It does not change env.
//
// ALL_PROXY is not socks5h:// because Python's httpx then refuses to start unless an optional package
// is installed. Node reads the others only with NODE_USE_ENV_PROXY, from 22.21 on.
func Environ(env []string, hostname string) []string {
	url, direct := fmt.Sprintf("http://%s", Addresses()[0]), "localhost,.localhost,127.0.0.1,::1,0.0.0.0,"+hostname
	add := slices.DeleteFunc([]string{
		"HTTP_PROXY=" + url, "http_proxy=" + url, "HTTPS_PROXY=" + url, "https_proxy=" + url, "ALL_PROXY=" + url, "all_proxy=" + url,
		"NO_PROXY=" + direct, "no_proxy=" + direct, "NODE_USE_ENV_PROXY=1",
	}, func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return slices.ContainsFunc(env, func(own string) bool {
			set, _, _ := strings.Cut(own, "=")
			return strings.EqualFold(set, name)
		})
	})
	return append(add, env...)
}

const (
	// ownFor is how long the list of the host's addresses is used before it is read again.
	ownFor = 5 * time.Second
	// ownAtMost is how long it is used if it cannot be read again.
	ownAtMost = time.Minute
)

// HostAddresses returns a function that lists the addresses of this host's interfaces, as they were
// five seconds ago or later, for [rules.Surroundings]. It returns nil if they cannot be read, at once
// or for a minute. It is safe for concurrent use; its callers do not change the list.
func HostAddresses() func() []netip.Addr { return hostAddresses(net.InterfaceAddrs, time.Now) }

func hostAddresses(list func() ([]net.Addr, error), now func() time.Time) func() []netip.Addr {
	var (
		mu    sync.Mutex
		read  time.Time
		addrs []netip.Addr
	)
	return func() []netip.Addr {
		mu.Lock()
		defer mu.Unlock()
		age := now().Sub(read)
		if addrs != nil && age < ownFor {
			return addrs
		}
		found, err := list()
		if err != nil {
			if age > ownAtMost {
				addrs = nil
			}
			return addrs
		}
		read, addrs = now(), []netip.Addr{}
		for _, a := range found {
			if n, ok := a.(*net.IPNet); ok {
				if addr, ok := netip.AddrFromSlice(n.IP); ok {
					addrs = append(addrs, addr.Unmap())
				}
			}
		}
		return addrs
	}
}

// routedHere reports whether the host's routes lead addr to the host itself, which they may although
// no interface has the address: load balancers of clouds, for example, use such addresses. It asks
// the kernel for the route, rtnetlink(7).
func routedHere(addr netip.Addr) (bool, error) {
	fd, err := syscall.Socket(syscall.AF_NETLINK, syscall.SOCK_RAW|syscall.SOCK_CLOEXEC, syscall.NETLINK_ROUTE)
	if err != nil {
		return false, os.NewSyscallError("socket", err)
	}
	defer syscall.Close(fd)
	to, family := addr.AsSlice(), byte(syscall.AF_INET)
	if addr.Is6() {
		family = syscall.AF_INET6
	}
	ask := make([]byte, syscall.NLMSG_HDRLEN+syscall.SizeofRtMsg, 64)
	binary.NativeEndian.PutUint16(ask[4:], syscall.RTM_GETROUTE)
	binary.NativeEndian.PutUint16(ask[6:], syscall.NLM_F_REQUEST)
	ask[syscall.NLMSG_HDRLEN], ask[syscall.NLMSG_HDRLEN+1] = family, byte(addr.BitLen())
	ask = binary.NativeEndian.AppendUint16(ask, uint16(syscall.SizeofRtAttr+len(to)))
	ask = binary.NativeEndian.AppendUint16(ask, syscall.RTA_DST)
	ask = append(ask, to...)
	binary.NativeEndian.PutUint32(ask, uint32(len(ask)))
	if err := syscall.Sendto(fd, ask, 0, &syscall.SockaddrNetlink{Family: syscall.AF_NETLINK}); err != nil {
		return false, os.NewSyscallError("sendto", err)
	}
	answer := make([]byte, 4096)
	n, _, err := syscall.Recvfrom(fd, answer, 0)
	if err != nil {
		return false, os.NewSyscallError("recvfrom", err)
	}
	messages, err := syscall.ParseNetlinkMessage(answer[:n])
	if err != nil || len(messages) == 0 || len(messages[0].Data) < syscall.SizeofRtMsg {
		return false, errors.New("the kernel's answer about a route is malformed")
	}
	// Any other message is an error: there is no route.
	m := messages[0]
	return m.Header.Type == syscall.RTM_NEWROUTE && m.Data[7] == syscall.RTN_LOCAL, nil
}
