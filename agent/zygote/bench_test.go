package zygote

import (
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// BenchmarkCommand times a command from the payload to the end of the process, in turn with a bare
// fork and exec of true and a new interpreter, and reports the medians. The spare is forked
// before, as an agent does.
func BenchmarkCommand(b *testing.B) {
	for _, bench := range []struct{ name, code string }{
		{"nothing", ""},
		{"json", "import json, re; print(json.dumps([1]))"},
		{"exit", "import sys; sys.exit(3)"},
		{"open file", "f = open('/dev/null', 'w')"},
		{"executed", "x = = 1"},
	} {
		b.Run(bench.name, func(b *testing.B) {
			z := newZygote(b, "json", "re")
			command := Command{Args: []string{"python3", "-c", bench.code}, Env: baseEnv, Dir: "/"}
			null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
			if err != nil {
				b.Fatal(err)
			}
			defer null.Close()
			fd := int(null.Fd())
			command.Stdio = [3]int{fd, fd, fd}
			var bare, warm, cold []time.Duration
			for b.Loop() {
				bare = append(bare, timed(func() {
					wait(b, forkExec(b, "/bin/true", Command{Args: []string{"true"}, Dir: "/", Stdio: command.Stdio}))
				}))
				if len(bare)%8 == 0 {
					cold = append(cold, timed(func() { wait(b, newInterpreter(b)(command)) }))
				}
				spare := z.fork(b)
				time.Sleep(2 * time.Millisecond) // it gets ready
				warm = append(warm, timed(func() {
					if _, err := spare.Run(command, patience); err != nil {
						b.Fatal(err)
					}
					wait(b, spare.PID)
				}))
				unix.Close(spare.FD)
			}
			b.ReportMetric(median(bare), "bare-µs")
			b.ReportMetric(median(warm), "warm-µs")
			b.ReportMetric(median(cold), "cold-µs")
			b.ReportMetric(median(warm)/median(bare), "warm/bare")
			b.ReportMetric(0, "ns/op")
		})
	}
}

func timed(f func()) time.Duration {
	begin := time.Now()
	f()
	return time.Since(begin)
}

// median is in µs.
func median(d []time.Duration) float64 {
	if len(d) == 0 {
		return 0
	}
	slices.Sort(d)
	return float64(d[len(d)/2].Nanoseconds()) / 1000
}

func forkExec(t testing.TB, path string, c Command) (pid int) {
	files := []uintptr{uintptr(c.Stdio[0]), uintptr(c.Stdio[1]), uintptr(c.Stdio[2])}
	pid, err := syscall.ForkExec(path, c.Args, &syscall.ProcAttr{Dir: c.Dir, Env: c.Env, Files: files, Sys: &syscall.SysProcAttr{Setsid: true}})
	if err != nil {
		t.Fatal(err)
	}
	return pid
}
