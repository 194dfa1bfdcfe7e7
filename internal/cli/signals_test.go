package cli

import (
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"github.com/boxd/boxd/engine"
)

// runAsync starts boxd and returns where its status will be sent.
func runAsync(v *invocation, args ...string) <-chan int {
	status := make(chan int, 1)
	go func() { status <- v.Main(append([]string{"run"}, args...)) }()
	return status
}

func TestSignalIsForwarded(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
		v := newInvocation(t)
		running := make(chan bool)
		v.fake.behave = func(p *fakeProcess) engine.Result {
			running <- true
			return engine.Result{Verdict: engine.Signaled, ExitCode: -1, Signal: <-p.signals}
		}
		status := runAsync(v, "x")
		<-running
		v.signals <- sig
		if got := <-status; got != 128+int(sig) || v.stderr.Len() > 0 {
			t.Errorf("%v: status %d, stderr %q", sig, got, v.stderr.String())
		}
		if got := strings.Join(v.fake.log, " "); got != "start remove close" {
			t.Errorf("%v: engine saw %q", sig, got)
		}
	}
}

// TestSignalHandled: a command that handles the signal decides on its exit status.
func TestSignalHandled(t *testing.T) {
	v := newInvocation(t)
	running := make(chan bool)
	v.fake.behave = func(p *fakeProcess) engine.Result {
		running <- true
		<-p.signals
		return engine.Result{Verdict: engine.Exited, ExitCode: 7}
	}
	status := runAsync(v, "x")
	<-running
	v.signals <- syscall.SIGTERM
	if got := <-status; got != 7 {
		t.Errorf("status %d, want 7", got)
	}
}

func TestSecondSignalKills(t *testing.T) {
	v := newInvocation(t)
	running := make(chan bool)
	v.fake.behave = func(p *fakeProcess) engine.Result {
		running <- true
		<-p.ctx.Done()
		return engine.Result{Verdict: engine.Canceled, ExitCode: -1, Signal: syscall.SIGKILL}
	}
	status := runAsync(v, "x")
	<-running
	v.signals <- syscall.SIGINT
	v.signals <- syscall.SIGTERM
	if got := <-status; got != 130 || v.stderr.String() != "verdict: canceled\n" {
		t.Errorf("status %d, stderr %q", got, v.stderr.String())
	}
}

func TestSignalWhileCreating(t *testing.T) {
	v := newInvocation(t)
	v.fake.hold = true
	status := runAsync(v, "x")
	<-v.fake.created
	v.signals <- syscall.SIGTERM
	if got := <-status; got != 143 || v.stderr.String() != "boxd: stopped by SIGTERM\n" {
		t.Errorf("status %d, stderr %q", got, v.stderr.String())
	}
}

// TestRealSignal sends signals to this process, and checks that an ignored signal stays ignored, which
// nohup needs.
func TestRealSignal(t *testing.T) {
	signal.Ignore(syscall.SIGHUP)
	defer signal.Reset(syscall.SIGHUP)
	v := newInvocation(t)
	v.Signals = nil
	running := make(chan bool)
	v.fake.behave = func(p *fakeProcess) engine.Result {
		running <- true
		return engine.Result{Verdict: engine.Signaled, ExitCode: -1, Signal: <-p.signals}
	}
	status := runAsync(v, "x")
	<-running
	self, err := os.FindProcess(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	defer self.Release() // its pidfd
	for _, sig := range []os.Signal{syscall.SIGHUP, syscall.SIGTERM} {
		if err := self.Signal(sig); err != nil {
			t.Fatal(err)
		}
	}
	if got := <-status; got != 143 {
		t.Errorf("status %d, want 143", got)
	}
	if !signal.Ignored(syscall.SIGHUP) {
		t.Error("SIGHUP is no longer ignored")
	}
}
