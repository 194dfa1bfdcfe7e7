package linux

import (
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxSignal is SIGRTMAX.
const maxSignal = 64

// SignalName is the name of sig, such as "SIGKILL", or its number where it has
// none, as real-time signals do. 0 is "".
func SignalName(sig syscall.Signal) string {
	if sig == 0 {
		return ""
	}
	if name := unix.SignalName(sig); name != "" {
		return name
	}
	return strconv.Itoa(int(sig))
}

// ParseSignal reads "SIGHUP", "hup" or "1"; false if there is no such signal.
func ParseSignal(s string) (syscall.Signal, bool) {
	if n, err := strconv.ParseUint(s, 10, 8); err == nil {
		return syscall.Signal(n), n >= 1 && n <= maxSignal
	}
	name := strings.ToUpper(s)
	if !strings.HasPrefix(name, "SIG") {
		name = "SIG" + name
	}
	sig := unix.SignalNum(name)
	return sig, sig != 0
}
