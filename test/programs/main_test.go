package programs

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/boxd/boxd/internal/testutil"
)

// goRole is the variable that makes the test binary play a Go program in a box.
const goRole = "BOXD_TEST_GO"

func TestMain(m *testing.M) {
	if os.Getenv(goRole) != "" {
		if err := playGo(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	testutil.Main(m)
}

// playGo lists the interfaces and their addresses, and resolves a name.
func playGo() error {
	interfaces, err := net.Interfaces()
	if err != nil {
		return err
	}
	for _, i := range interfaces {
		addresses, err := i.Addrs()
		if err != nil {
			return err
		}
		fmt.Println(i.Name, addresses)
	}
	found, err := net.LookupHost("www.box.test")
	slices.Sort(found)
	fmt.Println(found)
	return err
}

// copyOfSelf returns a directory that every user of a box can reach, with the test
// binary in it under the name "go".
func copyOfSelf(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	from, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	to, err := os.OpenFile(filepath.Join(dir, "go"), os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	if _, err := io.Copy(to, from); err != nil {
		t.Fatal(err)
	}
	return dir
}

// tail returns the end of an output.
func tail(s string) string {
	s = strings.TrimSpace(s)
	return s[max(0, len(s)-2000):]
}
