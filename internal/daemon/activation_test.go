package daemon

import (
	"os"
	"strconv"
	"testing"
)

// Without a service manager there are no sockets, and variables for another process are ignored.
func TestNotActivated(t *testing.T) {
	for _, env := range []map[string]string{{}, {"LISTEN_FDS": "3", "LISTEN_PID": strconv.Itoa(os.Getpid() + 1)}, {"LISTEN_FDS": "x", "LISTEN_PID": strconv.Itoa(os.Getpid())}} {
		for key, value := range env {
			t.Setenv(key, value)
		}
		if all, err := activated(false); err != nil || len(all) != 0 {
			t.Errorf("%v: %v, %v", env, all, err)
		}
	}
}
