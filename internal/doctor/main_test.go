package doctor

import (
	"fmt"
	"os"
	"testing"

	"github.com/boxd/boxd/internal/testutil"
)

func TestMain(m *testing.M) {
	if os.Getenv(confinedVariable) != "" {
		if err := beConfined(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	testutil.Main(m)
}
