package ledger

import (
	"encoding/binary"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// optionKinds are allocations of socket options: memory that optmem_max bounds per socket, and that no cgroup
// is charged for.
var optionKinds = []kind{
	{name: "TCP MD5 keys", slow: true, workers: 2, take: tcpKeys, held: kmallocs, limit: inMemory, why: "a key is 192 bytes, 128 KB of them a socket"},
	{name: "IPv4 multicast groups", workers: 8, take: ipv4Groups, held: lines("igmp", 200), limit: inMemory, why: "igmp_max_memberships of the box"},
	{name: "IPv6 multicast groups", workers: 2, take: ipv6Groups, held: lines("igmp6", 240), limit: inMemory, why: "optmem_max of the box"},
	{name: "IPv6 source filters", take: sourceFilters, held: kmallocs, limit: inMemory, why: "optmem_max of the box"},
	{name: "IPv4 options", workers: 4, take: ipv4Options, held: kmallocs, limit: inMemory, why: "40 bytes a socket"},
	{name: "IPv6 flow labels", take: flowLabels, held: lines("ip6_flowlabel", 1),
		limit: func() bound { return share(4096 / 16) }, why: "the host has 4096 of them"},
	{name: "socket filters", take: oneSocketFilter, held: made, limit: func() bound { return share(0) },
		why: "a program of a command does not enter the kernel"},
	{name: "seccomp filters", take: oneSeccompFilter, held: made, limit: func() bound { return share(0) },
		why: "a program of a command does not enter the kernel"},
}

// setOption sets an option to the bytes of a struct.
func setOption(fd, level, option int, value []byte) error {
	return os.NewSyscallError("setsockopt", unix.SetsockoptString(fd, level, option, string(value)))
}

// onSockets makes sockets and sets options of each until set says that it takes no more.
func onSockets(h *hoard, family, kind int, set func(fd int) (more bool, err error)) error {
	for {
		fd, err := socket(family, kind, 0)
		if err != nil {
			return err
		}
		if more, err := set(fd); err != nil || !more {
			return err
		}
	}
}

func tcpKeys(h *hoard) error {
	key := make([]byte, 216) // struct tcp_md5sig
	binary.NativeEndian.PutUint16(key, unix.AF_INET)
	binary.NativeEndian.PutUint16(key[130:], 80) // length of the key
	made := false
	return onSockets(h, unix.AF_INET, unix.SOCK_STREAM, func(fd int) (bool, error) {
		for i := range uint32(500) { // the kernel walks a list
			binary.BigEndian.PutUint32(key[4:], 10<<24|i)
			if err := setOption(fd, unix.IPPROTO_TCP, unix.TCP_MD5SIG, key); err != nil {
				if !made {
					return false, err
				}
				return true, nil // as many as this socket may have
			}
			made = true
			if !h.took(192) {
				return false, nil
			}
		}
		return true, nil
	})
}

func ipv4Groups(h *hoard) error {
	return onSockets(h, unix.AF_INET, unix.SOCK_DGRAM, func(fd int) (bool, error) {
		for range 20 {
			n := uint32(h.objects)
			group := &unix.IPMreq{Multiaddr: [4]byte{239, byte(h.worker)<<4 | byte(n>>16), byte(n >> 8), byte(n)}, Interface: [4]byte{127, 0, 0, 1}}
			if err := unix.SetsockoptIPMreq(fd, unix.SOL_IP, unix.IP_ADD_MEMBERSHIP, group); err == unix.ENOBUFS {
				return true, nil
			} else if err != nil {
				return false, os.NewSyscallError("setsockopt", err)
			}
			if !h.took(200) {
				return false, nil
			}
		}
		return true, nil
	})
}

func ipv6Groups(h *hoard) error {
	return onSockets(h, unix.AF_INET6, unix.SOCK_DGRAM, func(fd int) (bool, error) {
		for range 2500 {
			group := &unix.IPv6Mreq{Multiaddr: [16]byte{0: 0xff, 1: 0x01, 2: byte(h.worker)}, Interface: 1}
			binary.BigEndian.PutUint64(group.Multiaddr[8:], uint64(h.objects))
			if err := unix.SetsockoptIPv6Mreq(fd, unix.SOL_IPV6, unix.IPV6_JOIN_GROUP, group); err == unix.ENOMEM || err == unix.ENOBUFS {
				return true, nil
			} else if err != nil {
				return false, os.NewSyscallError("setsockopt", err)
			}
			if !h.took(240) {
				return false, nil
			}
		}
		return true, nil
	})
}

func sourceFilters(h *hoard) error {
	const sources = 64
	filter := make([]byte, 144+sources*128) // struct group_filter
	binary.NativeEndian.PutUint32(filter, 1)
	address := func(at int, last uint32) {
		binary.NativeEndian.PutUint16(filter[at:], unix.AF_INET6)
		copy(filter[at+8:], []byte{0xff, 0x01})
		binary.BigEndian.PutUint32(filter[at+20:], last)
	}
	binary.NativeEndian.PutUint32(filter[136:], unix.MCAST_INCLUDE)
	binary.NativeEndian.PutUint32(filter[140:], sources)
	return onSockets(h, unix.AF_INET6, unix.SOCK_DGRAM, func(fd int) (bool, error) {
		group := &unix.IPv6Mreq{Multiaddr: [16]byte{0: 0xff, 1: 0x01}, Interface: 1}
		binary.BigEndian.PutUint32(group.Multiaddr[12:], uint32(h.objects))
		if err := unix.SetsockoptIPv6Mreq(fd, unix.SOL_IPV6, unix.IPV6_JOIN_GROUP, group); err != nil {
			return false, os.NewSyscallError("setsockopt", err)
		}
		address(8, uint32(h.objects))
		for i := range sources {
			address(144+i*128, uint32(i+1))
			filter[144+i*128+8] = 0xfd // a source is no group
		}
		// It may need more than optmem_max: then the socket has only the group.
		_ = setOption(fd, unix.SOL_IPV6, unix.MCAST_MSFILTER, filter)
		return h.took(sources * 16), nil
	})
}

func ipv4Options(h *hoard) error {
	options := make([]byte, 40)
	for i := range options {
		options[i] = 1 // no operation
	}
	return onSockets(h, unix.AF_INET, unix.SOCK_DGRAM, func(fd int) (bool, error) {
		if err := setOption(fd, unix.SOL_IP, unix.IP_OPTIONS, options); err != nil {
			return false, err
		}
		return h.took(len(options)), nil
	})
}

func flowLabels(h *hoard) error {
	const flowLabelManager = 32                     // IPV6_FLOWLABEL_MGR
	request := make([]byte, 32)                     // struct in6_flowlabel_req
	request[15] = 1                                 // ::1
	request[21] = 1                                 // IPV6_FL_S_EXCL
	binary.NativeEndian.PutUint16(request[22:], 1)  // IPV6_FL_F_CREATE
	binary.NativeEndian.PutUint16(request[26:], 60) // linger, in seconds
	return onSockets(h, unix.AF_INET6, unix.SOCK_DGRAM, func(fd int) (bool, error) {
		for i := range 32 {
			if err := setOption(fd, unix.SOL_IPV6, flowLabelManager, request); err != nil {
				return i > 0, err
			}
			// Half of the pool is enough to know: the host needs the others.
			if !h.took(0) || h.objects == 2048 {
				return false, errEnough
			}
		}
		return true, nil
	})
}

// accept is the program that lets everything through.
var accept = unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}

// oneSocketFilter attaches one program. More than one is never tried.
func oneSocketFilter(h *hoard) error {
	fd, err := socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	program := &unix.SockFprog{Len: 1, Filter: &accept}
	if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, program); err != nil {
		return os.NewSyscallError("setsockopt", err)
	}
	h.took(8)
	return errEnough
}

// oneSeccompFilter loads one program into this thread. More than one is never tried.
func oneSeccompFilter(h *hoard) error {
	program := &unix.SockFprog{Len: 1, Filter: &accept}
	if err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(program)), 0, 0); err != nil {
		return os.NewSyscallError("prctl", err)
	}
	h.took(8)
	return errEnough
}
