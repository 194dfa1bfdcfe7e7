package native

import (
	"cmp"

	"github.com/boxd/boxd/engine/native/rpc"
)

// AdmitClient makes process pid the one process of its user that the launcher service of
// a state directory (empty: DefaultStateDir) serves; root is served as well. Only root
// can call it. Another process that was admitted and is still alive keeps its place, and
// that is an error. It holds until the process ends, whether the launcher is started
// again or not.
func AdmitClient(stateDir string, pid int) error {
	return rpc.NameClient(cmp.Or(stateDir, DefaultStateDir), pid)
}
