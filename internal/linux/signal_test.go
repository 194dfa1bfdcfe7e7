package linux

import (
	"syscall"
	"testing"
)

func TestSignals(t *testing.T) {
	for s, want := range map[string]syscall.Signal{"SIGHUP": 1, "hup": 1, "1": 1, "KILL": 9, "64": 64, "0": 0, "65": 0, "-1": 0, "": 0, "SIG": 0, "NOPE": 0} {
		if sig, ok := ParseSignal(s); ok != (want != 0) || ok && sig != want {
			t.Errorf("ParseSignal(%q) = %v, %v", s, sig, ok)
		}
	}
	for sig, want := range map[syscall.Signal]string{0: "", 9: "SIGKILL", 40: "40"} {
		if got := SignalName(sig); got != want {
			t.Errorf("SignalName(%d) = %q, want %q", int(sig), got, want)
		}
	}
}
