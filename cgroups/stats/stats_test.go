package stats

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"testing"

	"github.com/boxd/boxd/cgroups"
	"github.com/boxd/boxd/internal/testutil"
)

func TestMain(m *testing.M) { testutil.Main(m) }

func TestRead(t *testing.T) {
	testutil.RequireRoot(t)
	h, err := cgroups.Detect()
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	id := fmt.Sprintf("cgstats-%d", os.Getpid())
	if _, err := Read(h, id); h.Mode() != cgroups.Legacy && !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("reading a box that is not there: %v", err)
	}
	g, err := h.Create(id, cgroups.Owner{}, cgroups.Limits{Memory: 64 << 20, PIDs: 10, AllowDegraded: true})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Remove(context.Background())
	u, err := Read(h, id)
	if err != nil {
		t.Fatal(err)
	}
	if len(g.Degraded) == 0 && (u.Memory == nil || u.PIDs == nil || u.CPU == nil) {
		t.Errorf("%+v: want every figure", u)
	}
	if u.PIDs != nil && *u.PIDs != 0 {
		t.Errorf("%d processes in an empty box", *u.PIDs)
	}
}
