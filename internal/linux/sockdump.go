package linux

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// DiagSocket opens a socket for sock_diag(7). It stays in the network namespace of the calling
// thread, whichever process uses it.
func DiagSocket() (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil, os.NewSyscallError("socket(NETLINK_SOCK_DIAG)", err)
	}
	return os.NewFile(uintptr(fd), "sock_diag"), nil
}

// diagBuffer is larger than any message of a dump: the kernel puts at most 32 KiB into one
// (netlink_dump in net/netlink/af_netlink.c).
const diagBuffer = 64 << 10

// TCPListeners lists the TCP sockets that listen in the network namespace of a [DiagSocket]: those
// of IPv4, or of IPv6. Unlike /proc/<pid>/net/tcp it does not make the kernel walk the table of all
// connections of the host. ENOENT means that the kernel cannot do this.
func TCPListeners(diag *os.File, six bool) (found []Listener, err error) {
	family := byte(unix.AF_INET)
	if six {
		family = unix.AF_INET6
	}
	kernel := &unix.SockaddrNetlink{Family: unix.AF_NETLINK}
	err = control(diag, func(fd uintptr) error {
		if err := Retry(func() error { return unix.Sendto(int(fd), dumpRequest(family), 0, kernel) }); err != nil {
			return os.NewSyscallError("sendto(NETLINK_SOCK_DIAG)", err)
		}
		buf := make([]byte, diagBuffer)
		for done := false; !done; {
			var n int
			// The kernel has a message ready until the last one was received.
			err := Retry(func() (err error) {
				n, _, err = unix.Recvfrom(int(fd), buf, unix.MSG_DONTWAIT)
				return err
			})
			if err != nil {
				return os.NewSyscallError("recvfrom(NETLINK_SOCK_DIAG)", err)
			}
			var more []Listener
			if more, done, err = parseDump(buf[:n]); err != nil {
				return err
			}
			found = append(found, more...)
		}
		return nil
	})
	return found, err
}

// dumpRequest is struct nlmsghdr and struct inet_diag_req_v2 for all listening TCP sockets.
func dumpRequest(family byte) []byte {
	native := binary.NativeEndian
	const size = unix.SizeofNlMsghdr + 8 + 48
	b := native.AppendUint32(make([]byte, 0, size), size)
	b = native.AppendUint16(b, sockDiagByFamily)
	b = native.AppendUint16(b, unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	b = append(b, make([]byte, 8)...) // sequence number, port
	b = append(b, family, unix.IPPROTO_TCP, 0, 0)
	b = native.AppendUint32(b, 1<<stateListen)
	return append(b, make([]byte, 48)...)
}

// parseDump parses a datagram of several struct nlmsghdr, each followed by a struct inet_diag_msg, by an
// error, or by nothing at the end of the dump.
func parseDump(b []byte) (found []Listener, done bool, err error) {
	native := binary.NativeEndian
	if len(b) == 0 {
		return nil, false, errors.New("socket table: an empty answer")
	}
	for len(b) > 0 {
		if len(b) < unix.SizeofNlMsghdr || native.Uint32(b) < unix.SizeofNlMsghdr || uint64(native.Uint32(b)) > uint64(len(b)) {
			return nil, false, fmt.Errorf("socket table: a message of %d bytes is too short", len(b))
		}
		size, kind := int(native.Uint32(b)), native.Uint16(b[4:])
		body := b[unix.SizeofNlMsghdr:size]
		b = b[min(len(b), (size+unix.NLMSG_ALIGNTO-1)&^(unix.NLMSG_ALIGNTO-1)):]
		switch {
		case kind == unix.NLMSG_DONE:
			return found, true, nil
		case kind == unix.NLMSG_ERROR && len(body) >= 4:
			return nil, false, os.NewSyscallError("socket table", unix.Errno(-int32(native.Uint32(body))))
		case kind != sockDiagByFamily || len(body) < 72:
			return nil, false, fmt.Errorf("socket table: a message of type %d and %d bytes is unknown", kind, len(body))
		case body[1] != stateListen:
			continue
		}
		// inet_diag_msg: family, state, timer, retrans, then the source port and the destination
		// port in network order, and the source address.
		raw := body[8:12]
		if body[0] == unix.AF_INET6 {
			raw = body[8:24]
		}
		ip, _ := netip.AddrFromSlice(raw)
		found = append(found, netip.AddrPortFrom(ip, binary.BigEndian.Uint16(body[4:])))
	}
	return found, false, nil
}
