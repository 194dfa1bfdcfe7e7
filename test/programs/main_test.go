package programs

import (
	"fmt"
	"net"
	"os"
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

// tail returns the end of an output.
func tail(s string) string {
	s = strings.TrimSpace(s)
	return s[max(0, len(s)-2000):]
}
