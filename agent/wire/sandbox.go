package wire

// SandboxMsg is the part of InitMsg that puts the box behind a kernel of its own: gVisor's, in
// processes that the agent starts around its own root. The commands of the box run in there, and
// the agent, with nothing but its helpers, stays outside.
//
// Its descriptors follow those of the Init frame: the program runsc, a detached
// mount for SandboxInit, the cgroup directory of the sandbox, and Tasks v1 tasks files. SandboxDir is a directory of the box that becomes a file
// system of the agent's own, which commands do not see.
type SandboxMsg struct {
	Config  []byte   // of the bundle: config.json
	Process []byte   // of the helper in the guest: process.json
	Run     []string // arguments of runsc that start the sandbox; it ends once the sandbox runs
	Exec    []string // arguments of runsc that start the helper
	Tasks   uint32
}

// Files of a sandbox, as the arguments of runsc name them.
const (
	SandboxDir     = "/sys"
	SandboxRoot    = SandboxDir + "/root"  // the root of the box, with all of its mounts
	SandboxInit    = SandboxDir + "/init"  // the directory with the program of the helpers
	SandboxState   = SandboxDir + "/state" // of runsc
	SandboxBundle  = SandboxDir + "/bundle"
	SandboxProcess = SandboxDir + "/process.json"
	SandboxPID     = SandboxDir + "/pid" // of the sandbox, written by runsc
)

// Descriptors of runsc exec. These become the helper's: orders GuestOrders, reports
// GuestReports, and the command's stdio 0, 1 and 2.
const (
	ExecOrders   = 3
	ExecReports  = 4
	ExecStdin    = 5
	ExecStdout   = 6
	ExecStderr   = 7
	GuestOrders  = 3
	GuestReports = 4
)

func (e *encoder) sandbox(m *SandboxMsg) {
	e.bool(m != nil)
	if m == nil {
		return
	}
	e.bytes(m.Config)
	e.bytes(m.Process)
	e.strings(m.Run)
	e.strings(m.Exec)
	e.u32(m.Tasks)
}

func (d *decoder) sandbox() *SandboxMsg {
	if !d.bool() {
		return nil
	}
	return &SandboxMsg{Config: d.bytes(), Process: d.bytes(), Run: d.strings(), Exec: d.strings(), Tasks: d.u32()}
}

// SandboxFDs returns the number of descriptors of m.
func (m *SandboxMsg) SandboxFDs() int {
	if m == nil {
		return 0
	}
	return 3 + int(m.Tasks)
}
