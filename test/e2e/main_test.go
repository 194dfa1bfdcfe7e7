package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/boxd/boxd/internal/testutil"
)

func TestMain(m *testing.M) {
	testutil.Main(m)
}

// patience bounds every call of boxd, so that a hang is a failure with a name.
var patience = func() time.Duration {
	if os.Getenv("BOXD_TEST_VM") != "" {
		return 5 * time.Minute
	}
	return time.Minute
}()

// cli is a boxd to call, with a state directory of its own.
type cli struct {
	t     *testing.T
	boxd  string
	init  string
	state string
	data  string // of the images of newImageCLI
	env   []string
	stdin io.Reader
}

// newCLI requires root. What boxd leaves in the state directory fails the test.
func newCLI(t *testing.T) *cli {
	t.Helper()
	testutil.RequireRoot(t)
	c := &cli{t: t}
	c.boxd, c.init = testutil.BuildBinaries(t)
	c.state = testutil.ReachableDir(t, "/run")
	t.Cleanup(c.wantNothingLeft)
	c.env = append(os.Environ(), "BOXD_STATE_DIR="+c.state, "BOXD_INIT="+c.init)
	return c
}

// wantNothingLeft checks the state directory; TestMain checks everything else.
func (c *cli) wantNothingLeft() {
	c.t.Helper()
	if left := c.left(); len(left) > 0 {
		c.t.Errorf("left in the state directory: %q", left)
	}
}

// left is what the state directory holds beyond what every boxd uses again.
func (c *cli) left() (left []string) {
	c.t.Helper()
	err := filepath.WalkDir(c.state, func(path string, _ fs.DirEntry, err error) error {
		switch rel, _ := filepath.Rel(c.state, path); rel {
		case ".", "lock", "ids":
		default:
			left = append(left, rel)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil // removed meanwhile
		}
		return err
	})
	if err != nil {
		c.t.Error(err)
	}
	return left
}

// awaitNothingLeft is for a boxd that was killed: its launcher cleans up after it.
func (c *cli) awaitNothingLeft() {
	c.t.Helper()
	deadline := time.Now().Add(patience)
	for len(c.left()) > 0 && time.Now().Before(deadline) {
		time.Sleep(10 * time.Millisecond) // nobody is left who could tell
	}
	c.wantNothingLeft()
}

// result is how a call of boxd ended.
type result struct {
	status         int // -1: a signal ended it
	stdout, stderr string
}

func (r result) String() string {
	return fmt.Sprintf("status %d, stdout %.300q, stderr %.600q", r.status, r.stdout, r.stderr)
}

func (c *cli) command(args ...string) (*exec.Cmd, context.CancelFunc) {
	return c.commandWithin(patience, args...)
}

func (c *cli) commandWithin(limit time.Duration, args ...string) (*exec.Cmd, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(c.t.Context(), limit)
	cmd := exec.CommandContext(ctx, c.boxd, args...)
	cmd.Env = c.env
	cmd.Stdin = c.stdin
	cmd.WaitDelay = patience
	return cmd, cancel
}

// run calls boxd.
func (c *cli) run(args ...string) result {
	c.t.Helper()
	cmd, cancel := c.command(args...)
	defer cancel()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		c.t.Fatalf("boxd %.200q: %v", args, err)
	}
	return result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// want calls boxd run and compares all of it.
func (c *cli) want(r result, args ...string) {
	c.t.Helper()
	got := c.run(append([]string{"run"}, args...)...)
	if got.status == 128+int(syscall.SIGSEGV) && os.Getenv("BOXD_TEST_VM") != "" {
		// Programs that run from the virtual machine's shared file system crash now
		// and then (test/vm/boot), outside of boxes too.
		got = c.run(append([]string{"run"}, args...)...)
	}
	if got != r {
		c.t.Errorf("boxd run %.200q: %v, want %v", args, got, r)
	}
}

// wantRefused checks that boxd says no with one line that has all of parts.
func (c *cli) wantRefused(status int, got result, parts ...string) {
	c.t.Helper()
	line, rest, ended := strings.Cut(got.stderr, "\n")
	if got.status != status || got.stdout != "" || !ended || rest != "" || !strings.HasPrefix(line, "boxd: ") || len(line) > 500 {
		c.t.Errorf("%v, want status %d and one line on stderr", got, status)
	}
	for _, part := range parts {
		if !strings.Contains(line, part) {
			c.t.Errorf("%q: want %q in it", line, part)
		}
	}
	c.wantNothingLeft()
}
