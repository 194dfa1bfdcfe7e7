package linux

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// ErrClientGone is returned by [TCPClientUID] if the kernel cannot identify the client's
// user: the client has closed its end, or is in another network namespace.
var ErrClientGone = errors.New("the client has closed its end, or is in another network namespace")

// Numbers of include/uapi/linux/sock_diag.h, inet_diag.h and include/net/tcp_states.h.
const (
	sockDiagByFamily = 20
	diagNoCookie     = ^uint32(0)

	stateEstablished = 1
	stateListen      = 10
)

// TCPClientUID returns the user who created the socket at the other end of c, an accepted
// connection between two sockets of this network namespace. It is the file system user ID
// of the process that called socket(2), whichever process holds the descriptor now.
//
// TCPClientUID asks the kernel for the socket with the same two addresses swapped
// (sock_diag(7)). A socket without a process has no user, but many kernels report root as
// its user (sock_i_uid in net/core/sock.c before Linux 6.17), so only an established socket
// with an inode counts. After the client has closed its socket, another user may get its
// port. That user's connection cannot be established while c is, because the kernel has at
// most one socket per pair of addresses. So the state of c is checked last.
func TCPClientUID(c *net.TCPConn) (int, error) {
	local, ok1 := c.LocalAddr().(*net.TCPAddr)
	remote, ok2 := c.RemoteAddr().(*net.TCPAddr)
	if !ok1 || !ok2 {
		return 0, ErrClientGone
	}
	client, err := tcpSocket(remote.AddrPort(), local.AddrPort())
	if errors.Is(err, unix.ENOENT) {
		return 0, ErrClientGone
	}
	if err != nil {
		return 0, err
	}
	var info *unix.TCPInfo
	err = control(c, func(fd uintptr) (err error) {
		info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		return os.NewSyscallError("getsockopt(TCP_INFO)", err)
	})
	if err != nil {
		return 0, err
	}
	if client.state != stateEstablished || client.inode == 0 || info.State != stateEstablished {
		return 0, ErrClientGone
	}
	return int(client.uid), nil
}

// CanNameTCPClients returns an error if [TCPClientUID] cannot work for connections that
// l accepts. To find out, it looks up l itself.
func CanNameTCPClients(l net.Listener) error {
	at, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		return fmt.Errorf("%s is not a TCP address", l.Addr())
	}
	none := netip.IPv4Unspecified()
	if at.AddrPort().Addr().Unmap().Is6() {
		none = netip.IPv6Unspecified()
	}
	s, err := tcpSocket(at.AddrPort(), netip.AddrPortFrom(none, 0))
	if err == nil && s.state != stateListen {
		err = unix.ENOENT
	}
	if errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("%w: the kernel has no module tcp_diag (CONFIG_INET_DIAG), or the listener belongs to another network namespace", err)
	}
	return err
}

// tcpSocketInfo is a part of struct inet_diag_msg.
type tcpSocketInfo struct {
	state      uint8
	uid, inode uint32
}

// tcpSocket returns the TCP socket with exactly these addresses or, if there is none, a
// listener on local. ENOENT means that there is neither.
func tcpSocket(local, remote netip.AddrPort) (tcpSocketInfo, error) {
	// The kernel queues the answer before sendto(2) returns, so the receive need not wait.
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return tcpSocketInfo{}, os.NewSyscallError("socket(NETLINK_SOCK_DIAG)", err)
	}
	defer unix.Close(fd)
	kernel := &unix.SockaddrNetlink{Family: unix.AF_NETLINK}
	if err := Retry(func() error { return unix.Sendto(fd, diagRequest(local, remote), 0, kernel) }); err != nil {
		return tcpSocketInfo{}, os.NewSyscallError("sendto(NETLINK_SOCK_DIAG)", err)
	}
	var answer [1024]byte
	var n int
	var from unix.Sockaddr
	err = Retry(func() (err error) {
		n, from, err = unix.Recvfrom(fd, answer[:], unix.MSG_DONTWAIT)
		return err
	})
	if err != nil {
		return tcpSocketInfo{}, os.NewSyscallError("recvfrom(NETLINK_SOCK_DIAG)", err)
	}
	if sender, ok := from.(*unix.SockaddrNetlink); !ok || sender.Pid != 0 {
		return tcpSocketInfo{}, errors.New("socket table: an answer that is not the kernel's")
	}
	return parseDiagAnswer(answer[:n])
}

// diagRequest is struct nlmsghdr and struct inet_diag_req_v2 with the addresses.
func diagRequest(local, remote netip.AddrPort) []byte {
	native, network := binary.NativeEndian, binary.BigEndian
	src, dst := local.Addr().Unmap(), remote.Addr().Unmap()
	family := byte(unix.AF_INET)
	if src.Is6() {
		family = unix.AF_INET6
	}
	const size = unix.SizeofNlMsghdr + 8 + 48
	b := native.AppendUint32(make([]byte, 0, size), size)
	b = native.AppendUint16(b, sockDiagByFamily)
	b = native.AppendUint16(b, unix.NLM_F_REQUEST)
	b = append(b, make([]byte, 8)...) // sequence number, port
	b = append(b, family, unix.IPPROTO_TCP, 0, 0)
	b = native.AppendUint32(b, ^uint32(0)) // states, which only dumps use
	b = network.AppendUint16(b, local.Port())
	b = network.AppendUint16(b, remote.Port())
	for _, ip := range []netip.Addr{src, dst} {
		b = append(b, ip.AsSlice()...)
		b = append(b, make([]byte, 16-ip.BitLen()/8)...)
	}
	b = native.AppendUint32(b, 0) // any interface
	b = native.AppendUint32(b, diagNoCookie)
	return native.AppendUint32(b, diagNoCookie)
}

// parseDiagAnswer parses a struct nlmsghdr followed by a struct inet_diag_msg or an error.
func parseDiagAnswer(b []byte) (tcpSocketInfo, error) {
	native := binary.NativeEndian
	short := fmt.Errorf("socket table: an answer of %d bytes is too short", len(b))
	if len(b) < unix.SizeofNlMsghdr+4 {
		return tcpSocketInfo{}, short
	}
	kind, body := native.Uint16(b[4:]), b[unix.SizeofNlMsghdr:]
	switch {
	case kind == unix.NLMSG_ERROR:
		return tcpSocketInfo{}, os.NewSyscallError("socket table", unix.Errno(-int32(native.Uint32(body))))
	case kind != sockDiagByFamily:
		return tcpSocketInfo{}, fmt.Errorf("socket table: an answer of the unknown type %d", kind)
	case len(body) < 72:
		return tcpSocketInfo{}, short
	}
	return tcpSocketInfo{state: body[1], uid: native.Uint32(body[64:]), inode: native.Uint32(body[68:])}, nil
}
