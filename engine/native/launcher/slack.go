package launcher

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/boxd/boxd/agent/wire"
)

// timerSlack is by how many ns a thread of an agent may sleep longer than it asked for.
//
// The monitor of the Go runtime sleeps for 20 µs at a time whenever something happens, and
// goes on like that for 10 ms while a thread waits in a system call. Each waking costs more
// than what it finds: four fifths of the time of an agent whose 50 managed processes write a
// line a second (perf stat, perf record). Nothing in it needs a finer clock once it runs; its
// start does, by 2 ms, and the commands, which inherit it from the threads that spawn them.
const timerSlack = 2_000_000

// coarsen makes the timers of the agent coarse, once it has a managed process. What fails
// costs time only.
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
