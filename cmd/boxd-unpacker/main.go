// Boxd-unpacker takes the place of boxd-agent in boxes that unpack layers of images. It has one more
// role, "unpack": a step of unpacking a layer, as a command of the box. It is a program of its own so that
// decompressors do not cost every box memory and time.
package main

import (
	"github.com/boxd/boxd/agent/role"
	"github.com/boxd/boxd/agent/unpack"
)

func main() { role.Main("boxd-unpacker", map[string]func([]string) int{"unpack": unpack.Main}) }
