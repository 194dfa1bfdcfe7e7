// Boxd-agent has the roles of boxd inside of a box. The launcher starts it from a sealed copy, and people
// do not call it. The first argument is the role:
//
//	agent      PID 1 of a box
//	enter      a command of a gVisor sandbox, seen from outside; hold, what it left behind
//	guest      the same inside, and guest-init, PID 1 of the sandbox
//	files      a file operation in a box, as a command of the box
//	dial       a connection to a port of a box, as a command of the box
//	version    prints the version
package main

import "github.com/boxd/boxd/agent/role"

func main() { role.Main("boxd-agent", nil) }
