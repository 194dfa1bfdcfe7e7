package faults

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native"
)

// event is one line of a caller's report.
type event struct {
	Step    string // "engine", "box", the name of a command, "close"
	Verdict engine.Verdict
	Code    int
	Error   string
}

// callerSpec is what a caller is asked to do, in its environment.
type callerSpec struct {
	Init, State, ID string
}

// ownStatus is the exit status of every command of a caller: a 0 would be made up.
const ownStatus = 7

// commands are what a caller runs in its box: all of them at once.
var commands = map[string]engine.Command{
	"short":      shell("exit 7"),
	"sleepy":     shell("sleep 0.05; exit 7"),
	"chatty":     shell("i=0; while [ $i -lt 3000 ]; do echo line $i; echo line >&2; i=$((i+1)); done; exit 7"),
	"background": shell("(setsid sh -c 'sleep 1000 & sleep 1000 & exec sleep 1000' &); exit 7"),
	"kept":       keep(shell("(setsid sh -c 'sleep 1000 & exec sleep 1000' >/dev/null 2>&1 </dev/null &); exit 7")),
	"hog":        shell("head -c 24000000 /dev/zero | tail -c 24000000 >/dev/null; exit 7"),
	"terminal":   {Args: []string{"sh", "-c", "stty size; sleep 0.02; exit 7"}, TTY: &engine.WindowSize{Rows: 24, Cols: 80}, Stdout: io.Discard},
}

func shell(script string) engine.Command {
	return engine.Command{Args: []string{"sh", "-c", script}, Stdout: new(strings.Builder), Stderr: new(strings.Builder)}
}

func keep(c engine.Command) engine.Command {
	c.KeepBackground = true
	return c
}

// caller is a program that embeds boxd: it makes a box, runs commands in it and
// reports on stdout how each ended.
func caller() int {
	var spec callerSpec
	if err := json.Unmarshal([]byte(os.Getenv("BOXD_FAULTS_CALLER")), &spec); err != nil {
		panic(err)
	}
	var mu sync.Mutex
	report := func(e event, err error) {
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			e.Error = err.Error()
		}
		_ = json.NewEncoder(os.Stdout).Encode(e)
	}
	ctx := context.Background()
	e, err := native.Start(ctx, native.Options{InitPath: spec.Init, StateDir: spec.State})
	report(event{Step: "engine"}, err)
	if err != nil {
		return 3
	}
	box, err := e.Create(ctx, engine.Spec{ID: spec.ID, Limits: engine.Limits{Memory: 64 << 20}})
	report(event{Step: "box"}, err)
	if err == nil {
		runAll(ctx, box, report)
		report(event{Step: "remove"}, box.Remove(ctx))
	}
	report(event{Step: "close"}, e.Close())
	return 0
}

func runAll(ctx context.Context, box engine.Box, report func(event, error)) {
	var wg sync.WaitGroup
	for name, cmd := range commands {
		wg.Go(func() {
			p, err := box.Start(ctx, cmd)
			if err != nil {
				report(event{Step: name, Code: -1}, fmt.Errorf("start: %w", err))
				return
			}
			r, err := p.Wait()
			report(event{Step: name, Verdict: r.Verdict, Code: r.ExitCode}, err)
		})
	}
	wg.Wait()
}

// running is a caller that was started.
type running struct {
	cmd    *exec.Cmd
	events chan event // closed at the end of its report
	stderr strings.Builder
}

// startCaller starts a caller.
func startCaller(t testing.TB, state, id string) *running {
	t.Helper()
	_, boxdInit := binaries(t)
	spec, err := json.Marshal(callerSpec{Init: boxdInit, State: state, ID: id})
	if err != nil {
		t.Fatal(err)
	}
	r := &running{cmd: exec.Command("/proc/self/exe"), events: make(chan event, 100)}
	r.cmd.Env = append(os.Environ(), roleVariable+"=caller", "BOXD_FAULTS_CALLER="+string(spec))
	out, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	errs, ew, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.cmd.Stdout, r.cmd.Stderr = w, ew
	err = r.cmd.Start()
	w.Close()
	ew.Close()
	if err != nil {
		t.Fatal(err)
	}
	// The pipes end with their last writer, which may be a launcher.
	said := make(chan struct{})
	go func() {
		defer close(said)
		defer errs.Close()
		_, _ = io.Copy(&r.stderr, errs)
	}()
	go func() {
		defer close(r.events)
		defer out.Close()
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var e event
			if json.Unmarshal(lines.Bytes(), &e) == nil {
				r.events <- e
			}
		}
		<-said
	}()
	return r
}

// finish waits for the caller and returns its report. One that hangs is killed
// and fails the test.
func (r *running) finish(t testing.TB) []event {
	t.Helper()
	exited := make(chan struct{})
	go func() {
		defer close(exited)
		_ = r.cmd.Wait()
	}()
	var events []event
	timer := newTimer(t)
	for open := true; open; {
		select {
		case e, ok := <-r.events:
			open = ok
			if ok {
				events = append(events, e)
			}
		case <-timer:
			t.Errorf("caller hangs after %v", events)
			for _, p := range descendants(r.cmd.Process.Pid) {
				t.Logf("below it: %v", p)
			}
			_ = r.cmd.Process.Signal(quitWithStacks)
			timer = newTimer(t)
		}
	}
	<-exited
	return events
}
