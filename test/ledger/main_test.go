package ledger

import (
	"fmt"
	"os"
	"testing"

	"github.com/boxd/boxd/internal/testutil"
)

func TestMain(m *testing.M) {
	if name := os.Getenv(roleKind); name != "" {
		if err := playHoarder(name); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	testutil.Main(m)
}
