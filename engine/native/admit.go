package native

import (
	"cmp"

	"github.com/boxd/boxd/engine/native/rpc"
)

// AdmitClient names the process that the launcher service of a state directory serves.
// An empty stateDir means DefaultStateDir. Only root can call it.
//
// The service refuses all other processes of that process's user, so that a program
// which takes over another one of the user cannot reach the launcher; it serves root in
// any case. The admission lasts until the process ends, also if the launcher restarts.
// While an admitted process is alive, admitting another one is an error.
func AdmitClient(stateDir string, pid int) error {
	return rpc.NameClient(cmp.Or(stateDir, DefaultStateDir), pid)
}
