package boxtest

import (
	"strings"
	"testing"

	"github.com/boxd/boxd/engine"
)

const FillBytes = `exec head -c 64M /dev/zero > "$0/file"`

const FillFiles = `import os, sys
n = 0
while True:
    os.close(os.open(f"{sys.argv[1]}/{n}", os.O_CREAT)); n += 1`

func WantVolumeFull(t testing.TB, o Outcome, limit string) {
	t.Helper()
	Want(t, o, engine.DiskQuota, 1)
	if o.Limit != limit || !strings.Contains(o.Stderr, "No space left") && !strings.Contains(o.Stderr, "quota exceeded") {
		t.Errorf("limit %q, stderr %q, want limit %q and no space left", o.Limit, Tail(o.Stderr), limit)
	}
}
