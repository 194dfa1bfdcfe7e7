package audit

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// crashEnv makes the test binary a program that appends to the log it names.
const crashEnv = "BOXD_TEST_AUDIT_LOG"

func TestMain(m *testing.M) {
	if path := os.Getenv(crashEnv); path != "" {
		appendForever(path)
	}
	os.Exit(m.Run())
}

// appendForever appends, and prints the number of each line that was written.
func appendForever(path string) {
	l, err := Open(path, Options{MaxBytes: MinBytes, Keep: 1 << 20})
	for err == nil {
		if err = l.Append(Entry{Action: "exec", Details: map[string]any{"n": rand.Uint64()}}); err == nil {
			_, err = fmt.Println(l.Head().Seq)
		}
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// TestKilled kills a writer at random moments, including during rotations: every entry that
// Append confirmed is there afterwards, and the chain is intact.
func TestKilled(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	for round := range 12 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), crashEnv+"="+path)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		var told uint64
		var kill *time.Timer
		for lines.Scan() {
			if told, err = strconv.ParseUint(lines.Text(), 10, 64); err != nil {
				t.Fatal(err)
			}
			if kill == nil { // it is at work: not long any more
				kill = time.AfterFunc(rand.N(20*time.Millisecond), func() { cmd.Process.Kill() })
			}
		}
		if kill == nil {
			t.Fatal("the writer wrote nothing")
		}
		cmd.Wait() // it was killed
		r, err := Verify(path, Head{})
		if err != nil || r.Head.Seq < told {
			t.Fatalf("round %d: %d was told of: %+v, %v", round, told, r, err)
		}
		if round == 11 && r.Files < 3 {
			t.Errorf("only %d files: rotations were not tried", r.Files)
		}
	}
	write(t, path, Options{}, 1)
	verify(t, path)
}
