package outside

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
)

// Sockets is the memory that the sockets of a network namespace hold, in bytes.
type Sockets struct {
	// Never is memory that no kernel charges to a cgroup: connections that were not
	// accepted (made in a soft interrupt), datagrams that wait to be sent (UDP_CORK), and
	// all queues of ping and netlink sockets.
	Never int64
	// Maybe is memory that is charged on cgroup v2, and on v1 if memory.kmem.tcp is in
	// use: the queues of TCP sockets and of received datagrams.
	Maybe int64

	backlog   int64 // connections that wait to be accepted, live or dead
	waiting   int64 // the live ones of them, which /proc lists
	tcpQueues int64 // bytes in the queues of listed TCP sockets
}

// Uncharged returns the memory that is not part of charge, the memory cgroup's charge for
// sockets.
func (s Sockets) Uncharged(charge int64) int64 { return s.Never + max(s.Maybe-charge, 0) }

const (
	// fewSockets is how many sockets of a protocol other than TCP are worth inspecting: the
	// queues of fewer cannot hold much. A single TCP listener can have a long accept queue.
	fewSockets = 16

	// fewDead is how many dead connections may wait to be accepted without being counted:
	// clients of an honest server sometimes give up.
	fewDead = 64
	// deadQueue is how much a dead connection in an accept queue may hold: its receive buffer.
	deadQueue = 128 << 10

	// fewUnbound is how many sockets may have no address without being counted. Honest
	// programs bind or connect a socket soon after they open it, and hardly keep more.
	fewUnbound = 256
	// unboundQueue is how much an unbound socket may hold: one corked datagram.
	unboundQueue = 64 << 10
)

// table is one file of /proc/<pid>/net that lists the sockets of a protocol.
type table struct {
	protocol, file string
	add            func(s *Sockets, f []string, size int64)
}

var tables = []table{
	{"NETLINK", "netlink", (*Sockets).addNetlink},
	{"UDP", "udp", (*Sockets).addUDP}, {"UDPv6", "udp6", (*Sockets).addUDP},
	{"PING", "icmp", (*Sockets).addPing}, {"PINGv6", "icmp6", (*Sockets).addPing},
	// Last, because the kernel walks the connections of all namespaces, which takes milliseconds.
	{"TCP", "tcp", (*Sockets).addTCP}, {"TCPv6", "tcp6", (*Sockets).addTCP},
}

// ReadSockets measures the sockets of the network namespace of process pid. It may stop once
// Never reaches enough. For hidden sockets, which no table lists, it estimates the memory.
func ReadSockets(pid int, enough int64) (s Sockets, err error) {
	dir := fmt.Sprintf("/proc/%d/net/", pid)
	protocols, err := os.ReadFile(dir + "protocols")
	if err != nil {
		return s, fmt.Errorf("counting sockets: %w", err)
	}
	kinds := parseProtocols(string(protocols))
	sockstat, err := os.ReadFile(dir + "sockstat")
	if err != nil {
		return s, fmt.Errorf("counting sockets: %w", err)
	}
	for _, t := range tables {
		kind, few := kinds[t.protocol], int64(fewSockets)
		if strings.HasPrefix(t.protocol, "TCP") {
			few = 1
		}
		if kind.sockets < few || s.Never >= enough {
			continue
		}
		f, err := os.Open(dir + t.file)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the kernel has no such protocol
		}
		if err == nil {
			err = s.addTable(f, t, kind.size, enough)
			f.Close()
		}
		if err != nil {
			return s, fmt.Errorf("measuring sockets: %w", err)
		}
	}
	if s.Never < enough {
		used, tcpMemory := parseSockstat(string(sockstat))
		s.addHidden(used-listed(kinds), kinds["TCP"].size, tcpMemory)
	}
	return s, nil
}

// addHidden counts sockets that no protocol lists, because they have no address, or lost it.
// tcpMemory is how much all TCP sockets of the host hold.
//
// A connection that its client resets stays in the accept queue with its data, and the backlog
// of the listener counts it (tcp_reset in net/ipv4/tcp_input.c unhashes it). A UDP socket
// that is disconnected keeps its corked datagram (__udp_disconnect in net/ipv4/udp.c).
func (s *Sockets) addHidden(hidden, size, tcpMemory int64) {
	// The tables are not read at the same moment. A connection that was accepted in between
	// is not dead, and is not hidden either.
	dead := max(min(s.backlog-s.waiting, hidden), 0)
	if dead > fewDead {
		s.Never += min(dead*(size+deadQueue), max(tcpMemory-s.tcpQueues, 0))
	}
	s.Never += max(hidden-dead-fewUnbound, 0) * unboundQueue
}

// parseSockstat returns how many sockets a network namespace has, and how many bytes the
// queues of all TCP sockets of the host take.
func parseSockstat(text string) (used, tcpMemory int64) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		for i := 1; i+1 < len(f); i += 2 {
			n, _ := strconv.ParseInt(f[i+1], 10, 64)
			switch {
			case f[0] == "sockets:" && f[i] == "used":
				used = n
			case f[0] == "TCP:" && f[i] == "mem":
				tcpMemory = n * int64(os.Getpagesize())
			}
		}
	}
	return used, tcpMemory
}

// listed returns how many sockets the protocols list.
func listed(kinds map[string]kind) (n int64) {
	for _, k := range kinds {
		n += k.sockets
	}
	return n
}

// kind is one line of /proc/<pid>/net/protocols.
type kind struct{ size, sockets int64 }

// parseProtocols returns for each protocol how many sockets have an address or need none, with
// or without a descriptor, and the size of one in bytes.
func parseProtocols(text string) map[string]kind {
	kinds := map[string]kind{}
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 3 {
			continue
		}
		var k kind
		k.size, _ = strconv.ParseInt(f[1], 10, 64)
		k.sockets, _ = strconv.ParseInt(f[2], 10, 64)
		kinds[f[0]] = k
	}
	return kinds
}

// addTable adds the sockets of one table.
func (s *Sockets) addTable(r io.Reader, t table, size, enough int64) error {
	lines := bufio.NewScanner(r)
	lines.Scan() // the names of the columns
	for lines.Scan() && s.Never < enough {
		if f := strings.Fields(lines.Text()); len(f) >= 10 {
			t.add(s, f, size)
		}
	}
	return lines.Err()
}

// queues returns the column tx_queue:rx_queue. A queue that changes while the kernel reads its two ends without
// a lock can be negative, as an unsigned number of 32 bits (get_tcp4_sock in net/ipv4/tcp_ipv4.c): it counts as empty.
func queues(f []string) (tx, rx int64) {
	a, b, _ := strings.Cut(f[4], ":")
	return queue(a), queue(b)
}

func queue(column string) int64 {
	n, _ := strconv.ParseUint(column, 16, 32)
	return max(int64(int32(n)), 0)
}

// addUDP adds a socket. The kernel shows its queues with the overhead of the buffers
// (udp4_format_sock in net/ipv4/udp.c); the receive queue includes the error queue.
func (s *Sockets) addUDP(f []string, _ int64) {
	tx, rx := queues(f)
	s.Never += tx
	s.Maybe += rx
}

func (s *Sockets) addPing(f []string, _ int64) {
	tx, rx := queues(f)
	s.Never += tx + rx
}

func (s *Sockets) addNetlink(f []string, _ int64) {
	rmem, _ := strconv.ParseInt(f[4], 10, 64)
	wmem, _ := strconv.ParseInt(f[5], 10, 64)
	s.Never += rmem + wmem
}

// States of TCP sockets (include/net/tcp_states.h). In some of them the columns of the queues
// mean something else. In others, a socket without an inode waits to be accepted.
const (
	established = "01"
	synSent     = "02" // tx_queue is any number for a moment: tcp_v4_connect sets one end of it first
	synRecv     = "03"
	timeWait    = "06"
	closeWait   = "08"
	listening   = "0A" // rx_queue is the number of connections that wait
	newSynRecv  = "0C"
)

// addTCP adds a socket. The kernel shows its queues as bytes of the stream; the buffers are
// larger.
func (s *Sockets) addTCP(f []string, size int64) {
	tx, rx := queues(f)
	switch state, inode := f[3], f[9]; {
	case state == listening:
		s.backlog += rx
	case state == synSent || state == synRecv || state == timeWait || state == newSynRecv:
	case inode == "0" && (state == established || state == closeWait):
		s.waiting++
		s.tcpQueues += tx + rx
		s.Never += size + tx + rx
	default:
		s.tcpQueues += tx + rx
		s.Maybe += tx + rx
	}
}
