package reach

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/boxd/boxd/internal/testutil"
	"github.com/boxd/boxd/test/daemon"
)

func TestMain(m *testing.M) { testutil.Main(m) }

// output runs a command and returns what it writes to stdout.
func output(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s%s", strings.Join(cmd.Args, " "), err, out, &stderr)
	}
	return string(out)
}

// blocks returns the code of a document in one language, in order.
func blocks(t *testing.T, document, language string) (list []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../..", document))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile("(?s)```"+language+"\n(.*?)```").FindAllSubmatch(text, -1) {
		list = append(list, string(m[1]))
	}
	if len(list) == 0 {
		t.Fatalf("%s has no code in %s", document, language)
	}
	return list
}

// addressOf returns the TCP address of a daemon.
func addressOf(t *testing.T, d *daemon.Daemon) string {
	t.Helper()
	log, err := os.ReadFile(d.Log())
	if err != nil {
		t.Fatal(err)
	}
	addresses := regexp.MustCompile(`msg=listening network=tcp address=(\S+)`).FindAllSubmatch(log, -1)
	if addresses == nil {
		t.Fatalf("the daemon does not say where it listens: %s", log)
	}
	return string(addresses[len(addresses)-1][1])
}

// write writes files of a directory that only root needs to read.
func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
