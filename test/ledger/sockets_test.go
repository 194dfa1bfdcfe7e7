package ledger

import (
	"encoding/binary"
	"os"

	"github.com/boxd/boxd/engine/spec"
	"golang.org/x/sys/unix"
)

// socketKinds are queues of sockets that no protocol account pays for: see Linux
// net/core/skbuff.c, sock_queue_err_skb, and net/netlink/af_netlink.c, netlink_ack.
var socketKinds = []kind{
	{name: "netlink sockets", take: manySockets(unix.AF_NETLINK, unix.SOCK_RAW), held: sockets("NETLINK"),
		// 32, and one for each process that may be between the count and the socket.
		limit: func() bound { return share(32 + 128) }, why: "counted for each box"},
	{name: "netlink acknowledgements", slow: true, take: netlinkAcknowledgements, held: queued("netlink"), limit: inMemory,
		why: "an error repeats the whole request, and waits in the sender's own socket"},
	{name: "ICMP echo replies", take: icmpEchoes, held: queued("icmp"), limit: inMemory,
		why: "ping sockets have no account"},
	{name: "time stamps of sent datagrams, asked for by a control message", take: timestamps(false), held: queued("udp"), limit: inMemory, watched: true,
		why: "the whole datagram waits in the error queue; a rule about setsockopt does not see this; before Linux 6.13 a watcher bounds it"},
	{name: "time stamps of sent datagrams, asked for by an option", take: timestamps(true), held: queued("udp"), limit: inMemory, watched: true,
		why: "as by a control message"},
	{name: "ICMP errors", slow: true, take: icmpErrors(unix.AF_INET), held: queued("udp"), limit: inMemory, why: "the error queue has no account"},
	{name: "ICMPv6 errors", slow: true, take: icmpErrors(unix.AF_INET6), held: queued("udp6"), limit: inMemory, why: "the error queue has no account"},
	{name: "corked datagrams", workers: 4, take: corkedDatagrams(unix.MSG_MORE), held: queued("udp"), limit: inMemory, watched: true,
		why: "64 KiB a socket: the number of sockets bounds it"},
	{name: "corked datagrams, by an option", workers: 4, take: corkedDatagrams(0), held: queued("udp"), limit: inMemory,
		why: "as with MSG_MORE"},
	{name: "UDP receive queues", take: udpQueues, held: queued("udp"), limit: inMemory, watched: true,
		why: "udp_mem is one pool of the host; cgroup v2 charges them by force, without an end"},
	{name: "notices of sends without a copy", take: zerocopyNotices, held: slab("skbuff_head_cache", "skbuff_small_head"), limit: inMemory, why: "bounded by optmem_max"},
	{name: "internet sockets", workers: 8, take: manySockets(unix.AF_INET, unix.SOCK_DGRAM), held: sockstat("sockets", "used", 1),
		limit: func() bound { return share(2048 + 128) }, why: "counted for each box: what hangs on a socket is bounded by their number"},
	{name: "UDP sockets", workers: 8, take: manySockets(unix.AF_INET, unix.SOCK_DGRAM), held: slab("UDP"), limit: inMemory, why: "charged"},
	{name: "unconnected TCP sockets", workers: 8, take: manySockets(unix.AF_INET6, unix.SOCK_STREAM), held: slab("TCPv6"), limit: inMemory, why: "charged"},
	{name: "Unix sockets", workers: 8, take: manySockets(unix.AF_UNIX, unix.SOCK_STREAM), held: socketBytes("UNIX", "UNIX-STREAM"), limit: inMemory, why: "charged"},
	{name: "abstract addresses", workers: 4, take: abstractAddresses, held: sum(kmallocs, socketBytes("UNIX", "UNIX-STREAM")), limit: inMemory, why: "sockets are charged, addresses of at most 192 bytes are not"},
	{name: "Unix stream queues", take: unixQueues(unix.SOCK_STREAM), held: claimed, limit: inMemory, why: "charged"},
	{name: "Unix datagram queues", take: unixQueues(unix.SOCK_DGRAM), held: claimed, limit: inMemory, why: "charged"},
	{name: "Unix packet queues", take: unixQueues(unix.SOCK_SEQPACKET), held: claimed, limit: inMemory, why: "charged"},
	{name: "Unix accept queue", take: unixAcceptQueue, held: socketBytes("UNIX", "UNIX-STREAM"), limit: inMemory, why: "charged to who connects"},
	{name: "descriptors in flight", take: descriptorsInFlight, held: made,
		// RLIMIT_NOFILE of the user, and one message (SCM_MAX_FD) more.
		limit: func() bound { return share(spec.DefaultOpenFiles + 253) }, why: "limited for each user, and a box is a user of its own"},
}

// loopback is 127.0.0.1, at a port.
func loopback(port int) *unix.SockaddrInet4 {
	return &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}
}

// nobody is a port without a listener.
const nobody = 9

func socket(family, kind, protocol int) (int, error) {
	fd, err := unix.Socket(family, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, protocol)
	return fd, os.NewSyscallError("socket", err)
}

// grow asks for buffers as large as the host allows. Whether it was given is seen in the
// counter.
func grow(fd int) {
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 64<<20)
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 64<<20)
}

func manySockets(family, kind int) func(*hoard) error {
	return func(h *hoard) error {
		for {
			if _, err := socket(family, kind, 0); err != nil || !h.took(1<<10) {
				return err
			}
		}
	}
}

func netlinkAcknowledgements(h *hoard) error {
	request := make([]byte, 32<<10)
	binary.NativeEndian.PutUint32(request, uint32(len(request)))
	binary.NativeEndian.PutUint16(request[4:], unix.RTM_NEWLINK) // needs a capability
	binary.NativeEndian.PutUint16(request[6:], unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	for {
		fd, err := socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		grow(fd)
		for range 32 { // what does not fit is dropped
			if err := unix.Sendto(fd, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
				break
			}
		}
		if !h.took(2 << 20) {
			return nil
		}
	}
}

func icmpEchoes(h *hoard) error {
	echo := make([]byte, 32<<10)
	echo[0] = 8 // echo request
	for {
		fd, err := socket(unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP)
		if err != nil {
			return err
		}
		grow(fd)
		for range 16 {
			if err := unix.Sendto(fd, echo, 0, loopback(0)); err != nil {
				break
			}
		}
		if !h.took(512 << 10) {
			return nil
		}
	}
}

// timestamps asks for the time at which each datagram was given to the device. The answer
// contains the datagram.
func timestamps(byOption bool) func(*hoard) error {
	const flags = unix.SOF_TIMESTAMPING_TX_SCHED | unix.SOF_TIMESTAMPING_TX_SOFTWARE // two answers
	control := make([]byte, unix.CmsgSpace(4))
	binary.NativeEndian.PutUint64(control, uint64(unix.CmsgLen(4)))
	binary.NativeEndian.PutUint32(control[8:], unix.SOL_SOCKET)
	binary.NativeEndian.PutUint32(control[12:], unix.SO_TIMESTAMPING)
	binary.NativeEndian.PutUint32(control[16:], flags)
	return func(h *hoard) error {
		datagram := make([]byte, 32<<10)
		for {
			fd, err := socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
			if err != nil {
				return err
			}
			grow(fd)
			message := control
			if byOption {
				message = nil
				if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPING, flags); err != nil {
					return os.NewSyscallError("setsockopt", err)
				}
			}
			for range 16 {
				if _, err := unix.SendmsgN(fd, datagram, message, loopback(nobody), 0); err != nil && err != unix.ECONNREFUSED {
					break
				}
			}
			if !h.took(192 << 10) { // what a queue of ordinary size holds: larger ones are refused
				return nil
			}
		}
	}
}

func icmpErrors(family int) func(*hoard) error {
	return func(h *hoard) error {
		level, option := unix.SOL_IP, unix.IP_RECVERR
		var to unix.Sockaddr = loopback(nobody)
		if family == unix.AF_INET6 {
			level, option = unix.SOL_IPV6, unix.IPV6_RECVERR
			to = &unix.SockaddrInet6{Port: nobody, Addr: [16]byte{15: 1}}
		}
		datagram := make([]byte, 1000)
		for {
			fd, err := socket(family, unix.SOCK_DGRAM, 0)
			if err != nil {
				return err
			}
			grow(fd)
			if err := unix.SetsockoptInt(fd, level, option, 1); err != nil {
				return os.NewSyscallError("setsockopt", err)
			}
			for range 300 {
				_ = unix.Sendto(fd, datagram, 0, to) // every other one returns the error of the one before
				if !h.tookMany(0, 1<<10) {
					return nil
				}
			}
			if !h.took(0) {
				return nil
			}
		}
	}
}

func corkedDatagrams(flag int) func(*hoard) error {
	return func(h *hoard) error {
		datagram := make([]byte, 60_000)
		for {
			fd, err := socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
			if err != nil {
				return err
			}
			if flag == 0 {
				if err := unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_CORK, 1); err != nil {
					return os.NewSyscallError("setsockopt", err)
				}
			}
			if err := unix.Sendto(fd, datagram, flag, loopback(nobody)); err != nil {
				return os.NewSyscallError("sendto", err)
			}
			if !h.took(len(datagram)) {
				return nil
			}
		}
	}
}

func udpQueues(h *hoard) error {
	datagram := make([]byte, 32<<10)
	for {
		receiver, err := socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
		if err != nil {
			return err
		}
		grow(receiver)
		to, err := bindLoopback(receiver)
		if err != nil {
			return err
		}
		sender, err := socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
		if err != nil {
			return err
		}
		for range 16 {
			if err := unix.Sendto(sender, datagram, 0, to); err != nil {
				break
			}
		}
		if !h.took(512 << 10) {
			return nil
		}
	}
}

// bindLoopback binds a socket to a port of its own.
func bindLoopback(fd int) (unix.Sockaddr, error) {
	if err := unix.Bind(fd, loopback(0)); err != nil {
		return nil, os.NewSyscallError("bind", err)
	}
	address, err := unix.Getsockname(fd)
	return address, os.NewSyscallError("getsockname", err)
}

func zerocopyNotices(h *hoard) error {
	for {
		fd, err := socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
		if err != nil {
			return err
		}
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ZEROCOPY, 1); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
		data := make([]byte, 100)
		for range 10 {
			if err := unix.Sendto(fd, data, unix.MSG_ZEROCOPY, loopback(nobody)); err != nil && err != unix.ECONNREFUSED {
				break
			}
		}
		if !h.took(256) { // one notice says that several are done
			return nil
		}
	}
}

func abstractAddresses(h *hoard) error {
	name := make([]byte, 100)
	for i := uint64(0); ; i++ {
		fd, err := socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		if err != nil {
			return err
		}
		binary.NativeEndian.PutUint64(name, i)
		name[8] = byte(h.worker)
		if err := unix.Bind(fd, &unix.SockaddrUnix{Name: "@" + string(name)}); err != nil {
			return os.NewSyscallError("bind", err)
		}
		if !h.took(len(name)) {
			return nil
		}
	}
}

func unixQueues(kind int) func(*hoard) error {
	return func(h *hoard) error {
		chunk := make([]byte, 32<<10)
		for {
			pair, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return os.NewSyscallError("socketpair", err)
			}
			for _, fd := range pair {
				grow(fd)
				if more, err := h.fill(fd, chunk); err != nil || !more {
					return err
				}
			}
			if !h.took(0) {
				return nil
			}
		}
	}
}

func unixAcceptQueue(h *hoard) error {
	const waiting = 4096
	for i := 0; ; i++ {
		listener, err := socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		if err != nil {
			return err
		}
		address := &unix.SockaddrUnix{Name: "@listener" + string(rune('a'+i))}
		if err := unix.Bind(listener, address); err != nil {
			return os.NewSyscallError("bind", err)
		}
		if err := unix.Listen(listener, waiting); err != nil {
			return os.NewSyscallError("listen", err)
		}
		for range waiting {
			client, err := socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
			if err != nil {
				return err
			}
			err = unix.Connect(client, address)
			unix.Close(client)
			if err != nil {
				break // the queue is full
			}
			if !h.took(2 << 10) {
				return nil
			}
		}
		if i == 20 {
			return errEnough
		}
	}
}

func descriptorsInFlight(h *hoard) error {
	rights := unix.UnixRights(make([]int, 100)...) // standard input, a hundred times
	for {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return os.NewSyscallError("socketpair", err)
		}
		for {
			if err := unix.Sendmsg(pair[0], []byte{0}, rights, nil, 0); err == unix.EAGAIN {
				break
			} else if err != nil {
				return os.NewSyscallError("sendmsg", err)
			}
			if !h.tookMany(100, 0) {
				return nil
			}
		}
	}
}
