package crash

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/boxd/boxd/client"
)

// recovery collects how long the daemon took to be ready again. It is reported, not
// judged: machines that run tests are busy with other things too.
type recovery struct{ took []time.Duration }

func (r *recovery) add(d time.Duration) { r.took = append(r.took, d) }

func (r *recovery) String() string {
	if len(r.took) == 0 {
		return "the daemon was never killed"
	}
	slices.Sort(r.took)
	at := func(q float64) time.Duration {
		return r.took[int(q*float64(len(r.took)-1))].Round(time.Millisecond)
	}
	return fmt.Sprintf("ready again after %v (median), %v (99 %%), %v (longest of %d)", at(0.5), at(0.99), at(1), len(r.took))
}

// logsToTheEnd asks for all of stdout, until the process has ended.
var logsToTheEnd = client.LogOptions{Stream: "stdout", Follow: true}

// copyTo checks all lines of logs, and closes them.
func copyTo(l *lines, logs *client.Logs) error {
	defer logs.Close()
	buf := make([]byte, 4096)
	for {
		n, err := logs.Read(buf)
		if lerr := l.add(buf[:n]); lerr != nil {
			return lerr
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
