package linux

import (
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxSignal is SIGRTMAX.
const maxSignal = 64

// SignalName returns the name of sig, such as "SIGKILL", or the number of a signal
// without a name, such as a real-time signal. It returns "" for 0.
func SignalName(sig syscall.Signal) string {
	if sig == 0 {
		return ""
	}
	if name := unix.SignalName(sig); name != "" {
		return name
	}
	return strconv.Itoa(int(sig))
}

// ParseSignal parses "SIGHUP", "hup" or "1". It returns false if there is no such signal.
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
