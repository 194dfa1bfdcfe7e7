package native

import (
	"io"
	"os"
	"reflect"

	"github.com/boxd/boxd/internal/fdkind"
)

// sameOutput reports whether two writers are the same. Then the command gets one pipe for
// both, which keeps the order of its output, and only one goroutine calls the writer.
func sameOutput(a, b io.Writer) bool {
	if a == nil || b == nil {
		return false
	}
	if f, ok := a.(*os.File); ok {
		if g, ok := b.(*os.File); ok {
			return f == g || fdkind.AreSame(f, g)
		}
	}
	t := reflect.TypeOf(a)
	return t.Comparable() && t == reflect.TypeOf(b) && a == b
}
