package launcher

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/boxd/boxd/agent/wire"
)

// timerSlack is how many ns longer than requested a thread of an agent may sleep.
//
// The monitor of the Go runtime sleeps for 20 µs at a time whenever something happens, and
// continues so for 10 ms while a thread waits in a system call. Waking up costs more than what
// it then does: four fifths of the time of an agent whose 50 managed processes write a line a
// second (perf stat, perf record). Once the agent runs, it needs no finer clock. Its start
// does, which would take 2 ms longer, and so do the commands, which inherit the slack of the
// threads that start them.
const timerSlack = 2_000_000

// coarsen makes the timers of the agent coarse. It is called when the box gets a managed
// process. A failure costs nothing but processor time.
func (b *box) coarsen() {
	b.coarse.Do(func() {
		tasks := filepath.Join("/proc", strconv.Itoa(b.pid), "task")
		threads, err := os.ReadDir(tasks)
		if err != nil || b.stillThere() != nil {
			return
		}
		for _, t := range threads {
			name, err := os.ReadFile(filepath.Join(tasks, t.Name(), "comm"))
			if err != nil || strings.TrimSpace(string(name)) == wire.SpawnerName {
				continue
			}
			_ = os.WriteFile(filepath.Join("/proc", t.Name(), "timerslack_ns"), []byte(strconv.Itoa(timerSlack)), 0)
		}
	})
}
