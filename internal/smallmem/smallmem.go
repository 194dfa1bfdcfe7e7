// Package smallmem keeps a program of Go and C small in memory. Importing it is all: its C
// constructor runs before the Go runtime starts.
package smallmem

/*
#cgo CFLAGS: -O2 -Wall -Wextra -Werror
*/
import "C"
