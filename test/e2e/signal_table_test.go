package e2e

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	boxddaemon "github.com/boxd/boxd/test/daemon"
	"github.com/boxd/boxd/test/services"

	"github.com/boxd/boxd/internal/testutil"
)

// What a signal does to a process of boxd. Whatever it does, afterwards nothing has happened to other boxes and their
// processes, the next command and the next box work, and nothing is left behind.
const (
	lives    = "lives on"
	replaced = "is replaced by another" // by its keeper
	ends     = "ends"
	restart  = "ends; the next start of the daemon replaces it"
)

// signalTable is the table of docs/operations.md#signals without systemd; test/vm/guest/packages has the one with it.
var signalTable = map[string]map[syscall.Signal]string{
	"daemon": {
		syscall.SIGTERM: "exit status 0", syscall.SIGINT: "exit status 0", syscall.SIGHUP: lives, syscall.SIGQUIT: "exit status 2",
		syscall.SIGUSR1: lives, syscall.SIGPIPE: lives, syscall.SIGKILL: "signal: killed",
	},
	"launcher": {
		syscall.SIGTERM: replaced, syscall.SIGINT: lives, syscall.SIGHUP: lives, syscall.SIGQUIT: lives,
		syscall.SIGUSR1: lives, syscall.SIGPIPE: lives, syscall.SIGKILL: replaced,
	},
	"keeper": { // SIGTERM ends its launcher as well: this is how it is told to
		syscall.SIGTERM: restart, syscall.SIGINT: lives, syscall.SIGHUP: lives, syscall.SIGQUIT: lives,
		syscall.SIGUSR1: lives, syscall.SIGPIPE: lives, syscall.SIGKILL: restart,
	},
	"PID 1 of a session": { // the next use of the session has another box
		syscall.SIGTERM: lives, syscall.SIGINT: lives, syscall.SIGHUP: lives, syscall.SIGQUIT: lives,
		syscall.SIGUSR1: lives, syscall.SIGPIPE: lives, syscall.SIGKILL: ends,
	},
	"PID 1 that unpacks": { // the import fails
		syscall.SIGTERM: lives, syscall.SIGINT: lives, syscall.SIGHUP: lives, syscall.SIGQUIT: lives,
		syscall.SIGUSR1: lives, syscall.SIGPIPE: lives, syscall.SIGKILL: "exit status 125",
	},
	"boxd run --direct": {
		syscall.SIGTERM: "exit status 143", syscall.SIGINT: "exit status 130", syscall.SIGHUP: "exit status 129", syscall.SIGQUIT: "exit status 131",
		syscall.SIGUSR1: lives, syscall.SIGPIPE: lives, syscall.SIGKILL: "signal: killed",
	},
	"launcher of boxd run --direct": { // what becomes of boxd run
		syscall.SIGTERM: lives, syscall.SIGINT: lives, syscall.SIGHUP: lives, syscall.SIGQUIT: lives,
		syscall.SIGUSR1: lives, syscall.SIGPIPE: lives, syscall.SIGKILL: "exit status 137",
	},
	"PID 1 of boxd run --direct": {
		syscall.SIGTERM: lives, syscall.SIGINT: lives, syscall.SIGHUP: lives, syscall.SIGQUIT: lives,
		syscall.SIGUSR1: lives, syscall.SIGPIPE: lives, syscall.SIGKILL: "exit status 137",
	},
	"boxd run by the daemon": {
		syscall.SIGTERM: "exit status 143", syscall.SIGINT: "exit status 130", syscall.SIGHUP: "exit status 129", syscall.SIGQUIT: "exit status 131",
		syscall.SIGUSR1: lives, syscall.SIGPIPE: lives, syscall.SIGKILL: "signal: killed",
	},
}

// signalled is a daemon with a session in which a process runs.
type signalled struct {
	*daemon
	inits    []int  // PID 1 of the session
	commands string // its processes
}

// nextWithin is how long the next box may take, whatever was signalled. A call waits as long for a launcher.
const nextWithin = 10 * time.Second

// TestSignalTable sends each signal to each process.
func TestSignalTable(t *testing.T) {
	testutil.Long(t)
	s := &signalled{daemon: startDaemon(t)}
	s.look("p")
	direct, byDaemon := []string{"run", "--direct", "--state-dir", s.state}, []string{"run", "--socket", s.socket()}
	for _, row := range []struct {
		process string
		run     []string // it is a process of this boxd run, so many generations after it
		depth   int
	}{
		{process: "PID 1 of a session"}, {process: "launcher"}, {process: "keeper"}, {process: "daemon"},
		{"boxd run --direct", direct, 0}, {"launcher of boxd run --direct", direct, 1}, {"PID 1 of boxd run --direct", direct, 2},
		{"boxd run by the daemon", byDaemon, 0},
	} {
		sub := func(name string, do func()) {
			t.Run(row.process+"/"+name, func(t *testing.T) {
				s.t = t
				defer func() { s.t = t }()
				do()
			})
		}
		var harmless []syscall.Signal
		for sig, want := range signalTable[row.process] {
			switch {
			case want == lives:
				harmless = append(harmless, sig)
			case row.run != nil:
				sub(sig.String(), func() { s.endRun(row.run, row.depth, []syscall.Signal{sig}, want) })
			default:
				sub(sig.String(), func() { s.signal(row.process, sig, want) })
			}
		}
		sub(lives, func() {
			if row.run != nil { // until the last one, which is for boxd run
				s.endRun(row.run, row.depth, harmless, lives)
			} else {
				s.shrugOff(row.process, harmless)
			}
		})
	}
	s.t = t
	t.Run("all at once", func(t *testing.T) { // as a supervisor does that ends a cgroup
		s.t = t
		for _, pid := range slices.Concat(s.pids("keeper"), s.pids("launcher"), s.pids("daemon")) {
			_ = syscall.Kill(pid, syscall.SIGTERM) // the keeper may have ended the launcher already
		}
		if status := s.wait(); status != 0 {
			t.Errorf("status %d", status)
		}
		s.start()
		s.wantWell()
	})
	s.t = t
}

// look starts a managed process in the session, and notes what runs there.
func (s *signalled) look(process string) {
	s.t.Helper()
	s.says(0, "", "start", "s", "--id", process, "--", "sleep", "3600")
	s.inits, s.commands = s.pids("PID 1 of a session"), s.inBox()
	if len(s.inits) != 1 {
		s.t.Fatalf("PID 1 of the session: %v", s.inits)
	}
}

func (s *signalled) inBox() string { return fmt.Sprint(services.Commands(s.t, s.sessionOf("s").Box)) }

// pids returns the process of a name: one, unless it is being restarted.
func (s *signalled) pids(process string) []int {
	switch process {
	case "daemon":
		return []int{s.cmd.Process.Pid}
	case "launcher", "keeper":
		return (&boxddaemon.Daemon{Config: boxddaemon.Config{Runtime: filepath.Join(s.dir, "run")}}).Find(boxddaemon.Role(process))
	}
	return services.Init(s.t, s.sessionOf("s").Box)
}

func (s *signalled) send(pids []int, sig syscall.Signal) {
	s.t.Helper()
	if len(pids) != 1 {
		s.t.Fatalf("processes to signal: %v", pids)
	}
	if err := syscall.Kill(pids[0], sig); err != nil {
		s.t.Fatal(err)
	}
}

// wantWell: a command and a new box work within nextWithin, and the session is what it was.
func (s *signalled) wantWell() {
	s.t.Helper()
	began := time.Now()
	s.says(0, "", "run", "--socket", s.socket(), "--", "true")
	s.says(0, "here\n", "exec", "s", "--", "echo", "here")
	if took := time.Since(began); took > nextWithin {
		s.t.Errorf("a box and a command took %v", took)
	}
	if inits, commands := s.pids("PID 1 of a session"), s.inBox(); !slices.Equal(inits, s.inits) || commands != s.commands {
		s.t.Errorf("PID 1 of the session is %v and was %v, its processes are %v and were %v", inits, s.inits, commands, s.commands)
	}
	for _, process := range []string{"launcher", "keeper"} {
		if now := s.pids(process); len(now) != 1 {
			s.t.Errorf("%s: %v", process, now)
		}
	}
	await(s.t, "only the session is left", func() bool { return s.run("sessions", "ls", "-q").stdout == "s\n" })
}

// shrugOff sends signals to a process of the daemon that lives on.
func (s *signalled) shrugOff(process string, signals []syscall.Signal) {
	before := s.pids(process)
	for _, sig := range signals {
		s.send(before, sig)
		s.says(0, "here\n", "exec", "s", "--", "echo", "here")
		if now := s.pids(process); !slices.Equal(now, before) {
			s.t.Errorf("%v: %v, before %v", sig, now, before)
		}
	}
	s.wantWell()
}

// signal sends a signal to a process of the daemon that ends.
func (s *signalled) signal(process string, sig syscall.Signal, want string) {
	before := s.pids(process)
	s.send(before, sig)
	if process == "daemon" {
		s.wait()
		if got := s.cmd.ProcessState.String(); got != want {
			s.t.Errorf("%s, want %s", got, want)
		}
		s.start()
		s.wantWell()
		return
	}
	await(s.t, process+" has ended", func() bool { return syscall.Kill(before[0], 0) == syscall.ESRCH })
	switch want {
	case replaced:
		await(s.t, "another "+process+" runs", func() bool { return len(s.pids(process)) == 1 })
	case restart:
		if sig == syscall.SIGTERM { // with its launcher
			await(s.t, "the launcher has ended", func() bool { return len(s.pids("launcher")) == 0 })
		} else {
			s.says(0, "", "run", "--socket", s.socket(), "--", "true")
		}
		s.stop()
		s.start()
	case ends:
		s.awaitFailed("s")
		s.says(0, "new\n", "exec", "s", "--", "echo", "new")
		s.look("another")
	}
	s.wantWell()
}

// endRun sends signals to a process of a boxd run, generations after it.
func (s *signalled) endRun(run []string, generations int, signals []syscall.Signal, want string) {
	t := s.t
	cmd, out, stderr := s.begin(append(run, "--", "sh", "-c", "echo ready; exec sleep 3600")...)
	pid := cmd.Process.Pid
	for range generations {
		pid = children(t, pid)[0]
	}
	for _, sig := range signals {
		s.send([]int{pid}, sig)
	}
	if want == lives {
		want = "exit status 143"
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
	}
	_, _ = io.Copy(io.Discard, out)
	_ = cmd.Wait()
	if got := cmd.ProcessState.String(); got != want {
		t.Errorf("%s, want %s; stderr %q", got, want, stderr)
	}
	if generations == 1 && want != "exit status 143" { // the next one cleans up after a launcher that was killed
		s.says(0, "next\n", append(run, "--", "echo", "next")...)
	}
	s.awaitNothingLeft()
	s.wantWell()
}

// TestSignalsUnpack: a box that unpacks survives what ends other programs. Without its PID 1 the import fails by name,
// leaves nothing, and the next one works.
func TestSignalsUnpack(t *testing.T) {
	testutil.Long(t)
	c := newImageCLI(t)
	dirs := []string{filepath.Join(c.data, "images"), filepath.Join(c.data, "store")}
	big := make([]byte, 48<<20)
	_, _ = rand.Read(big)
	archive := tarOf(t, rootFS(t, false, map[string]string{"big": string(big)}))
	signals := map[string][]syscall.Signal{}
	for sig, want := range signalTable["PID 1 that unpacks"] {
		signals[want] = append(signals[want], sig)
	}
	c.ok("image", "gc") // makes the directories
	before := tree(t, dirs...)
	for _, row := range []struct{ outcome, status string }{{"exit status 125", "exit status 125"}, {lives, "exit status 0"}} {
		cmd, cancel := c.command("image", "import", archive, "--name", "big")
		defer cancel()
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		pid := 0
		await(t, "a box unpacks", func() bool { pid = grandchild(t, cmd, "boxd-unpacker"); return pid > 0 })
		wantShown(t, pid, "boxd-unpacker", "boxd-unpacker box=box-[a-z2-7]{26}", "boxd-agent", "spawner")
		for _, sig := range signals[row.outcome] {
			if err := syscall.Kill(pid, sig); err != nil {
				t.Errorf("%v: %v", sig, err)
			}
		}
		_ = cmd.Wait()
		if got := cmd.ProcessState.String(); got != row.status || len(signals[row.outcome]) == 0 {
			t.Errorf("%v: %s, want %s; stderr %q", signals[row.outcome], got, row.status, &stderr)
		}
		c.awaitNothingLeft()
		if row.outcome != lives {
			if lines := strings.Split(stderr.String(), "\n"); len(lines) != 2 || !strings.HasPrefix(lines[0], "boxd: ") {
				t.Errorf("%q: want one line", lines)
			}
			c.ok("image", "gc")
			if after := tree(t, dirs...); !slices.Equal(before, after) {
				t.Errorf("before %q\nafter %q", before, after)
			}
		}
	}
}

// grandchild returns the process of a name (proc_pid_comm(5)) that a child of cmd has started, or 0.
func grandchild(t *testing.T, cmd *exec.Cmd, name string) int {
	t.Helper()
	for _, child := range children(t, cmd.Process.Pid) {
		tasks, _ := filepath.Glob("/proc/" + strconv.Itoa(child) + "/task/*/children")
		for _, task := range tasks {
			list, _ := os.ReadFile(task)
			for field := range strings.FieldsSeq(string(list)) {
				if comm, _ := os.ReadFile("/proc/" + field + "/comm"); string(comm) == name+"\n" {
					pid, _ := strconv.Atoi(field)
					return pid
				}
			}
		}
	}
	return 0
}

// TestLogReaderDies: the daemon outlives the program that reads its log through a pipe.
func TestLogReaderDies(t *testing.T) {
	d := newDaemon(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	d.logTo = w
	d.start()
	w.Close()
	if line, err := bufio.NewReader(r).ReadString('\n'); err != nil {
		t.Fatalf("%q, %v", line, err)
	}
	r.Close()
	if err := d.cmd.Process.Signal(syscall.SIGHUP); err != nil { // which it logs
		t.Fatal(err)
	}
	d.awaitNotify("READY=1")
	d.says(0, "fine\n", "run", "--socket", d.socket(), "--", "echo", "fine")
	d.stop()
}
