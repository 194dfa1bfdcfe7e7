package spec

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// The proxy of a box's network listens on these ports of the box's loopback. Both speak HTTP and SOCKS5;
// two, because programs know them by these numbers: 3128 is Squid's, and 1080 that of SOCKS.
const (
	ProxyPort = 3128
	SOCKSPort = 1080
)

// CheckBoxPort returns nil if a caller outside of a box may be connected to this TCP port of it. The
// ports of the proxy are refused, also for boxes without a network, which may get one: the proxy asks
// for no login, and adds secrets. Errors are of type *[FieldError].
func CheckBoxPort(field string, port int) error {
	switch {
	case port < 1 || port > 65535:
		return refuse(field, fmt.Sprint(port), "must be 1 to 65535")
	case port == ProxyPort || port == SOCKSPort:
		return refuse(field, fmt.Sprint(port), "must not be %d or %d, where the proxy of the box listens, which is for its own programs: use another port", ProxyPort, SOCKSPort)
	}
	return nil
}

// MaxPublish is the most ports that one session can publish.
const MaxPublish = 16

// PublishWish asks for a port of the host that leads to a port of the box.
type PublishWish struct {
	Port int      `json:"port" doc:"TCP port on which a program of the box listens, 1 to 65535."`
	Host HostPort `json:"host,omitempty" doc:"Port of the host, of the pool in the daemon's configuration; \"auto\" or absent: any free one."`
}

// ParsePublish reads [HOST:]PORT, where HOST is a port or "auto".
func ParsePublish(s string) (w PublishWish, err error) {
	host, port, found := strings.Cut(s, ":")
	if !found {
		host, port = autoPort, s
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if w.Port = int(n); err == nil {
		err = w.Host.UnmarshalText([]byte(host))
	}
	if err != nil || w.Port == 0 {
		return PublishWish{}, refuse("publish", Quote(s), "must be [HOST:]PORT, ports of 1 to 65535, such as 8000 or 20080:8000")
	}
	return w, nil
}

func (w PublishWish) String() string { return fmt.Sprintf("%s:%d", w.Host, w.Port) }

// ValidatePublish checks the ports by themselves. Errors are of type *[FieldError].
func ValidatePublish(list []PublishWish) error {
	if len(list) > MaxPublish {
		return refuse("publish", fmt.Sprintf("(%d ports)", len(list)), "must be at most %d", MaxPublish)
	}
	for i, w := range list {
		if err := CheckBoxPort(fmt.Sprintf("publish[%d].port", i), w.Port); err != nil {
			return err
		}
		for _, other := range list[:i] {
			switch {
			case other.Port == w.Port:
				return refuse(fmt.Sprintf("publish[%d].port", i), fmt.Sprint(w.Port), "is there twice: publish each port of the box once")
			case w.Host != 0 && other.Host == w.Host:
				return refuse(fmt.Sprintf("publish[%d].host", i), w.Host.String(), "is there twice: each port of the host leads to one port of the box")
			}
		}
	}
	return nil
}

// HostPort is a port of the host; 0 is any free one, "auto" as text.
type HostPort int

const autoPort = "auto"

func (p HostPort) String() string {
	if p == 0 {
		return autoPort
	}
	return strconv.Itoa(int(p))
}

// UnmarshalText reads "auto" or a port.
func (p *HostPort) UnmarshalText(text []byte) error {
	if string(text) == autoPort {
		*p = 0
		return nil
	}
	n, err := strconv.ParseUint(string(text), 10, 16)
	if err != nil || n == 0 {
		return refuse("host", Quote(string(text)), `must be "auto", or a port of 1 to 65535`)
	}
	*p = HostPort(n)
	return nil
}

// MarshalJSON returns a number, or "auto".
func (p HostPort) MarshalJSON() ([]byte, error) {
	if p == 0 {
		return json.Marshal(autoPort)
	}
	return json.Marshal(int(p))
}

// UnmarshalJSON reads "auto" or a number.
func (p *HostPort) UnmarshalJSON(data []byte) error {
	var text string
	if json.Unmarshal(data, &text) != nil {
		text = string(data)
	}
	return p.UnmarshalText([]byte(text))
}
