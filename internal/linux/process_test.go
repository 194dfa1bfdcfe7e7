package linux

import (
	"os"
	"testing"
)

func TestStartTime(t *testing.T) {
	mine, err := StartTime(os.Getpid())
	if err != nil || mine == 0 {
		t.Errorf("start time %d, %v", mine, err)
	}
	if first, err := StartTime(1); err != nil || first >= mine {
		t.Errorf("process 1 started at %d, %v, this one at %d", first, err, mine)
	}
	if _, err := StartTime(1 << 30); err == nil {
		t.Error("a process that cannot be has a start time")
	}
}
