package egress

import (
	"errors"
	"io"

	"github.com/boxd/boxd/egress/rules"
)

const (
	maxHello        = 32 << 10 // bytes of the records that carry a ClientHello
	maxHelloRecords = 32
)

var (
	errNotTLS = errors.New("it is not TLS")
	errHello  = errors.New("its TLS ClientHello is malformed")
)

// hello is what a ClientHello says before it is encrypted. With Encrypted Client Hello it
// is the outer one.
type hello struct {
	name string // of the server, canonical; "" if there is none
	ech  bool
}

// forbidden says why a tunnel to t must not begin with h, "" if it may. The server name must be that of t.
// An address needs no server name, but one that is given must not be denied.
func (h hello) forbidden(set *rules.Set, t rules.Target) string {
	switch {
	case t.Name == "" && h.name == "":
	case t.Name == "":
		if v := set.DeniedName(rules.Target{Name: h.name, Port: t.Port}); v != nil {
			return "its TLS server name is " + h.name + ", and " + v.Reason
		}
	case h.name == "":
		return "its TLS ClientHello has no server name"
	case h.name != t.Name:
		return "its TLS server name is " + h.name
	case h.ech && set.LimitsNames():
		// The outer name is the client's choice. A server for many names can decrypt the
		// inner one and answer for it, and a random extension (GREASE) looks the same.
		return "its TLS ClientHello has Encrypted Client Hello, which may hide another name; turn it off in the program"
	}
	return ""
}

// readHello reads the records of a ClientHello (RFC 8446, sections 4.1.2 and 5.1) and
// nothing after them. It returns the bytes as they came.
func readHello(r io.Reader) (raw []byte, h hello, err error) {
	raw = make([]byte, 0, 2<<10)
	var message []byte
	for range maxHelloRecords {
		start := len(raw)
		raw = append(raw, 0, 0, 0, 0, 0)
		record := raw[start:]
		if _, err := io.ReadFull(r, record[:1]); err != nil {
			return raw[:start], h, err
		}
		if record[0] != 22 { // handshake
			return raw[:start+1], h, errNotTLS
		}
		if _, err := io.ReadFull(r, record[1:]); err != nil {
			return raw[:start], h, err
		}
		n := int(record[3])<<8 | int(record[4])
		if record[1] != 3 || n == 0 || n > 1<<14 || len(raw)+n > maxHello {
			return raw, h, errHello
		}
		raw = append(raw, make([]byte, n)...)
		if _, err := io.ReadFull(r, raw[start+5:]); err != nil {
			return raw[:start], h, err
		}
		message = append(message, raw[start+5:]...)
		if message[0] != 1 { // ClientHello
			return raw, h, errHello
		}
		if len(message) < 4 {
			continue
		}
		size := 4 + (int(message[1])<<16 | int(message[2])<<8 | int(message[3]))
		if size > maxHello || len(message) > size {
			return raw, h, errHello
		}
		if len(message) == size {
			h, err = parseHello(message[4:])
			return raw, h, err
		}
	}
	return raw, h, errHello
}

// cursor reads fields off the front of a message. After one that is not there, bad stays
// true and every further field is empty.
type cursor struct {
	b   []byte
	bad bool
}

func (c *cursor) bytes(n int) []byte {
	if c.bad || len(c.b) < n {
		c.bad, c.b = true, nil
		return make([]byte, min(n, 3))
	}
	field := c.b[:n]
	c.b = c.b[n:]
	return field
}

// vector reads a field with a length in front of it, which has width bytes.
func (c *cursor) vector(width int) []byte {
	n := 0
	for _, b := range c.bytes(width) {
		n = n<<8 | int(b)
	}
	if c.bad {
		return nil
	}
	v := c.bytes(n)
	if c.bad {
		return nil
	}
	return v
}

// parseHello reads the body of a ClientHello.
func parseHello(body []byte) (h hello, err error) {
	c := &cursor{b: body}
	c.bytes(2 + 32) // version, random
	c.vector(1)     // session
	c.vector(2)     // cipher suites
	c.vector(1)     // compression
	if len(c.b) == 0 && !c.bad {
		return h, nil // TLS 1.2 without extensions
	}
	extensions := &cursor{b: c.vector(2)}
	named := false
	for len(extensions.b) > 0 {
		kind := extensions.bytes(2)
		data := &cursor{b: extensions.vector(2)}
		if extensions.bad {
			return h, errHello
		}
		switch int(kind[0])<<8 | int(kind[1]) {
		case 0: // server_name, RFC 6066
			list := &cursor{b: data.vector(2)}
			host := list.bytes(1)[0]
			name := list.vector(2)
			if named || data.bad || list.bad || len(data.b)+len(list.b) > 0 || host != 0 {
				return h, errHello
			}
			named = true
			t, err := rules.ParseHost(string(name))
			if err != nil || t.Name == "" {
				return h, errHello
			}
			h.name = t.Name
		case 0xfe0d: // encrypted_client_hello
			h.ech = true
		}
	}
	if c.bad || len(c.b) > 0 {
		return h, errHello
	}
	return h, nil
}
