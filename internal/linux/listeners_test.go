package linux

import (
	"fmt"
	"strings"
	"testing"
)

const tcpTable = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0 100 0 0 10 0
   1: 0100007F:1F91 0100007F:1F90 01 00000000:00000000 00:00000000 00000000     0        0 2 1 0 100 0 0 10 0
   2: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 3 1 0 100 0 0 10 0
`

const udp6Table = `  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops
  10: 00000000000000000000000001000000:0063 00000000000000000000000000000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 9 2 0 0
`

func TestParseListeners(t *testing.T) {
	for _, c := range []struct{ protocol, table, want string }{
		{"tcp", tcpTable, "[127.0.0.1:8080 0.0.0.0:22]"},
		{"udp6", udp6Table, "[[::1]:99]"},
		{"tcp", "headings\n", "[]"},
		{"tcp", "", "[]"},
		{"tcp6", tcpTable, "error"},
		{"tcp", "h\nx\n", "error"},
		{"tcp", "h\n0: 0100007F 0:0 0A\n", "error"},
		{"tcp", "h\n0: 0100007F:123456 0:0 0A\n", "error"},
	} {
		list, err := ParseListeners(strings.NewReader(c.table), c.protocol)
		got := fmt.Sprint(list)
		if err != nil {
			got = "error"
		}
		if got != c.want {
			t.Errorf("%s: %s, %v, want %s", c.protocol, got, err, c.want)
		}
	}
}

func FuzzParseListeners(f *testing.F) {
	f.Add(tcpTable, "tcp")
	f.Add(udp6Table, "udp6")
	f.Fuzz(func(t *testing.T, table, protocol string) {
		list, err := ParseListeners(strings.NewReader(table), protocol)
		for _, l := range list {
			if err == nil && !l.IsValid() {
				t.Errorf("%v is no address", l)
			}
		}
	})
}
