package main

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

var networkProbes = []probe{
	{"af-alg", "Copy Fail (CVE-2026-31431): page-cache writes from any readable file", sockets(unix.AF_ALG, unix.SOCK_SEQPACKET, 0), true},
	{"af-vsock", "the hypervisor", sockets(unix.AF_VSOCK, unix.SOCK_STREAM, 0), false},
	{"af-packet", "frames past the stack", sockets(unix.AF_PACKET, unix.SOCK_RAW, 0), true},
	{"sock-packet", "the same by its old name", sockets(unix.AF_INET, unix.SOCK_PACKET, 0), true},
	{"sock-raw", "packets past the stack", sockets(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP), true},
	{"sock-raw6", "packets past the stack", sockets(unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_ICMPV6), false},
	{"ping", "a receive queue that no cgroup is charged for", sockets(unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP), false},
	{"ping6", "the same for IPv6", sockets(unix.AF_INET6, unix.SOCK_DGRAM, unix.IPPROTO_ICMPV6), false},
	{"families", "address families are modules, loaded on demand", families, true},
	{"protocols", "so are protocols", protocols, false},
	{"netlink", "netfilter and others are configured, or just attacked", netlink, true},
	{"interfaces", "only lo", interfaces, false},
	{"configure-net", "the network is configured", configureNet, true},
	{"host-loopback", "services of the host that trust loopback", hostLoopback, true},
	{"host-address", "services of the host", hostAddress, true},
	{"metadata", "credentials of the cloud machine", dialing("169.254.169.254:80"), false},
	{"internet", "the world", dialing("192.0.2.1:443", "198.51.100.1:53", "[2001:db8::1]:443"), false},
	{"abstract", "sockets of the host without a path (CVE-2020-15257)", abstract, true},
}

// sockets tries a socket, also with a bit in the family that the kernel drops.
func sockets(family, kind, protocol uintptr) func(bait) outcome {
	return func(bait) outcome { return socketOf(family, kind, protocol) }
}

func socketOf(family, kind, protocol uintptr) outcome {
	return each(func(f uintptr) outcome {
		fd, err := raw(unix.SYS_SOCKET, f, kind, protocol)
		if err == nil {
			unix.Close(int(fd))
		}
		return failing("socket("+strconv.Itoa(int(family))+", "+strconv.Itoa(int(kind))+")", err)
	}, family, 1<<32|family)
}

func families(bait) outcome {
	var attempts []func() outcome
	for f := uintptr(0); f < 48; f++ {
		switch f {
		case unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK:
			continue
		}
		for _, kind := range []uintptr{unix.SOCK_STREAM, unix.SOCK_DGRAM, unix.SOCK_RAW, unix.SOCK_SEQPACKET} {
			attempts = append(attempts, func() outcome { return socketOf(f, kind, 0) })
		}
	}
	return short(all(attempts...))
}

// short cuts a long list of reasons.
func short(o outcome) outcome {
	if first, rest, ok := strings.Cut(o.text, "; "); ok {
		o.text = first + " and " + strconv.Itoa(strings.Count(rest, ";")+1) + " more"
	}
	return o
}

func protocols(bait) outcome {
	return all(
		sockTry(unix.SOCK_STREAM, unix.IPPROTO_SCTP), sockTry(unix.SOCK_SEQPACKET, unix.IPPROTO_SCTP),
		sockTry(unix.SOCK_DCCP, unix.IPPROTO_DCCP), sockTry(unix.SOCK_DGRAM, unix.IPPROTO_L2TP),
		sockTry(unix.SOCK_STREAM, unix.IPPROTO_MPTCP), sockTry(unix.SOCK_STREAM, 256)) // 256: IPPROTO_SMC
}

func sockTry(kind, protocol uintptr) func() outcome {
	return func() outcome {
		return all(func() outcome { return socketOf(unix.AF_INET, kind, protocol) },
			func() outcome { return socketOf(unix.AF_INET6, kind, protocol) })
	}
}

// netlink tries all protocols but NETLINK_ROUTE, which is 0.
func netlink(bait) outcome {
	var attempts []func() outcome
	for p := uintptr(1); p < 32; p++ {
		attempts = append(attempts, func() outcome { return socketOf(unix.AF_NETLINK, unix.SOCK_RAW, p) })
	}
	return all(attempts...)
}

func interfaces(bait) outcome {
	list, err := net.Interfaces()
	if err != nil {
		return untried(err.Error())
	}
	for _, i := range list {
		if i.Flags&net.FlagLoopback == 0 {
			return escaped("interface %q", i.Name)
		}
	}
	return blocked("%d interface, loopback", len(list))
}

// configureNet sets the MTU of lo to its present value.
func configureNet(bait) outcome {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return untried(cause(err))
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq("lo")
	if err == nil {
		err = unix.IoctlIfreq(fd, unix.SIOCGIFMTU, ifr)
	}
	if err != nil {
		return untried(cause(err))
	}
	return failing("setting the MTU of lo", unix.IoctlIfreq(fd, unix.SIOCSIFMTU, ifr))
}

func hostLoopback(b bait) outcome {
	if b[baitPort] == "" {
		return untried("no port given")
	}
	return dialing("127.0.0.1:"+b[baitPort], "[::1]:"+b[baitPort])(b)
}

func hostAddress(b bait) outcome {
	addr, err := netip.ParseAddr(b[baitAddress])
	if err != nil || b[baitPort] == "" {
		return untried("no address given")
	}
	return dialing(net.JoinHostPort(addr.String(), b[baitPort]))(b)
}

// dialing expects an error at once. A timeout means that packets left the box.
func dialing(addrs ...string) func(bait) outcome {
	return func(bait) outcome {
		return each(func(addr string) outcome {
			c, err := net.DialTimeout("tcp", addr, 2*time.Second)
			if err == nil {
				c.Close()
			}
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return escaped("packets to %s are sent", addr)
			}
			return failing("connecting to "+addr, err)
		}, addrs...)
	}
}

func abstract(b bait) outcome {
	if b[baitAbstract] == "" {
		return untried("no abstract socket given")
	}
	c, err := net.Dial("unix", "@"+b[baitAbstract])
	if err == nil {
		c.Close()
	}
	return failing("connecting to an abstract socket of the host", err)
}
