package volumes

import (
	"os"
)

func playHelper(role string, args []string) { os.Exit(3) }
