package ledger

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// tcpKinds are connections and their remains. The kernel charges a connection when it is accepted
// (net/core/sock.c, sk_clone_lock). On cgroup v1 it charges the data only if the command's own cgroup has a
// limit for that.
var tcpKinds = []kind{
	{name: "TCP accept queue", slow: true, workers: 2, take: acceptQueue(0), held: socketBytes("TCP"), limit: inMemory, watched: true,
		why: "nobody pays before accept: somaxconn of the box and the number of its sockets bound it"},
	{name: "TCP accept queue, with data", take: acceptQueue(256 << 10), held: tcpMemory, limit: inMemory, watched: true,
		why: "as the queue, and the first window of each"},
	{name: "TCP queues", take: tcpQueues(false), held: tcpMemory, limit: inMemory, watched: true, why: "tcp_mem is one pool of the host"},
	{name: "memory that TCP sockets reserve", workers: 2, take: reserved, held: tcpMemory, limit: inMemory, bareless: "only a box pays in advance", why: "charged, also on cgroup v1"},
	{name: "connections closed with data unsent", take: tcpQueues(true), held: sockstat("TCP", "orphan", 1),
		limit: func() bound { return share(131072 / 16) }, why: "tcp_max_orphans is one pool of the host"},
	{name: "connections closed with little data unsent", workers: 16, take: smallOrphans, held: sockstat("TCP", "orphan", 1),
		limit: func() bound { return share(131072 / 16) }, why: "tcp_max_orphans is one pool of the host"},
	{name: "TCP time-wait", workers: 2, take: timeWait, held: sockstat("TCP", "tw", 256), limit: inMemory, why: "tcp_max_tw_buckets of the box"},
	{name: "half-open TCP connections", take: halfOpen, held: slab("request_sock_TCP"), limit: inMemory, bareless: "loopback drops what a listener has no place for", why: "somaxconn of the box"},
}

// tcpMemory is what all sockets of the host have, in pages.
var tcpMemory = sockstat("TCP", "mem", 4096)

// reserved has sockets claim memory before they use it.
func reserved(h *hoard) error {
	const reserveMemory, size = 73, 8 << 20 // SO_RESERVE_MEM, Linux 5.17
	return onSockets(h, unix.AF_INET, unix.SOCK_STREAM, func(fd int) (bool, error) {
		err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, reserveMemory, size)
		if err == unix.ENOMEM {
			return true, nil // a smaller part of the others
		}
		return err == nil && h.took(size), os.NewSyscallError("setsockopt", err)
	})
}

// listen returns a listener on a port of its own.
func listen(backlog int) (int, unix.Sockaddr, error) {
	fd, err := socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return -1, nil, err
	}
	address, err := bindLoopback(fd)
	if err != nil {
		return -1, nil, err
	}
	return fd, address, os.NewSyscallError("listen", unix.Listen(fd, backlog))
}

// backlog is the longest queue that a listener can have here.
func backlog() int {
	content, _ := os.ReadFile("/proc/sys/net/core/somaxconn")
	n, err := strconv.Atoi(strings.TrimSpace(string(content)))
	if err != nil {
		return 4096
	}
	return n
}

// connect returns a connection. ok is false if the other side has no place for it.
func connect(to unix.Sockaddr) (fd int, ok bool, err error) {
	fd, err = socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return -1, false, err
	}
	switch err := unix.Connect(fd, to); err {
	case unix.EINPROGRESS:
		// Loopback answers at once, or after the second that a repeated request takes.
		state := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
		if n, _ := unix.Poll(state, 100); n == 1 {
			return fd, true, nil
		}
		unix.Close(fd)
		return -1, false, nil
	case nil:
		return fd, true, nil
	default:
		unix.Close(fd)
		return -1, false, os.NewSyscallError("connect", err)
	}
}

// acceptQueue leaves connections on listeners that accept none, without a descriptor of the
// other end.
func acceptQueue(data int) func(*hoard) error {
	return func(h *hoard) error {
		payload, longest := make([]byte, data), backlog()
		for {
			_, address, err := listen(longest)
			if err != nil {
				return err
			}
			for range longest {
				fd, ok, err := connect(address)
				if err != nil {
					return err
				}
				if !ok {
					break // full: the next listener
				}
				if data > 0 {
					_, _ = unix.Write(fd, payload) // as much as is taken
				}
				unix.Close(fd)
				if !h.took(data + 4<<10) {
					return nil
				}
			}
		}
	}
}

// connected returns both ends of a connection.
func connected(listener int, address unix.Sockaddr) (client, server int, err error) {
	client, ok, err := connect(address)
	if err != nil {
		return -1, -1, err
	}
	if !ok {
		return -1, -1, unix.EAGAIN
	}
	server, _, err = unix.Accept4(listener, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
	return client, server, os.NewSyscallError("accept", err)
}

func tcpQueues(closing bool) func(*hoard) error {
	return func(h *hoard) error {
		listener, address, err := listen(16)
		if err != nil {
			return err
		}
		chunk := make([]byte, 256<<10)
		for {
			client, server, err := connected(listener, address)
			if err != nil {
				return err
			}
			if closing {
				for { // what is not taken at once is enough
					if n, err := unix.Write(client, chunk); err != nil || n < len(chunk) {
						break
					}
				}
				unix.Close(client)
				if !h.took(100 << 10) {
					return nil
				}
				continue
			}
			for _, fd := range []int{client, server} {
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

// smallOrphans closes connections whose peer reads nothing, with the smallest buffers that the kernel
// allows, so that little memory pays for each.
func smallOrphans(h *hoard) error {
	listener, address, err := listen(16)
	if err != nil {
		return err
	}
	if err := unix.SetsockoptInt(listener, unix.SOL_SOCKET, unix.SO_RCVBUF, 1); err != nil {
		return os.NewSyscallError("setsockopt", err)
	}
	chunk := make([]byte, 16<<10)
	for {
		client, _, err := connected(listener, address)
		if err != nil {
			return err
		}
		if err := unix.SetsockoptInt(client, unix.SOL_SOCKET, unix.SO_SNDBUF, 1); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
		for {
			if n, err := unix.Write(client, chunk); err != nil || n < len(chunk) {
				break
			}
		}
		unix.Close(client)
		if !h.took(8 << 10) {
			return nil
		}
	}
}

func timeWait(h *hoard) error {
	for {
		listener, address, err := listen(16)
		if err != nil {
			return err
		}
		for range 20_000 { // a port of the client's for each
			client, server, err := connected(listener, address)
			if err != nil {
				return err
			}
			unix.Close(client)
			unix.Close(server)
			if !h.took(256) {
				return nil
			}
		}
	}
}

// halfOpen asks listeners without a queue for connections that they cannot take.
func halfOpen(h *hoard) error {
	for {
		_, address, err := listen(0)
		if err != nil {
			return err
		}
		for range 8 {
			fd, err := socket(unix.AF_INET, unix.SOCK_STREAM, 0)
			if err != nil {
				return err
			}
			if err := unix.Connect(fd, address); err != nil && err != unix.EINPROGRESS {
				return os.NewSyscallError("connect", err)
			}
			if !h.took(320) {
				return nil
			}
		}
	}
}
