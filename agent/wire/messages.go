package wire

import (
	"fmt"
	"math"
	"syscall"
)

// Frame types of the conversation with an agent.
const (
	TypeInit    = 1 // launcher → agent: InitMsg
	TypeReady   = 2 // agent → launcher: empty
	TypeSpawn   = 3 // client → agent: SpawnMsg
	TypeStarted = 4 // agent → client: the program runs; no body
	TypeFailed  = 5 // agent → client: FailedMsg
	TypeSignal  = 6 // client → agent: SignalMsg
	TypeExited  = 7 // agent → client: ExitedMsg
)

// Bounds of messages beyond those of the frame.
const (
	MaxSpawners = 16
	MaxStrings  = 1 << 17 // arguments or variables
	MaxRlimits  = 16
)

// InitMsg sets the agent up. Its descriptors: the listening socket, HomeTasks v1 tasks
// files, which each thread that starts commands enters once, and those of Sandbox.
type InitMsg struct {
	// Version is the launcher's. The agent must be of the same build. It is the first field, so
	// that an agent of another build can read it whatever follows.
	Version string
	// Lifeline: the agent, and so the box, ends when this connection closes.
	Lifeline bool
	// Linger is how many milliseconds the agent then waits, after killing its commands: the
	// boxes of a launcher that dies must not all end in the same moment.
	Linger uint32
	// Filter is the seccomp program for the agent and all its children, as an array of
	// struct sock_filter (8 bytes each).
	Filter    []byte
	HomeTasks uint32
	// Spawners is how many threads start commands, 1 … MaxSpawners.
	Spawners uint32
	// Sockets bounds how many sockets the box may have.
	Sockets Sockets
	// Unpacks: commands of user 0 have capabilities over files, see spawn.h.
	Unpacks bool
	// Sandbox is set in a box of gVisor. Its kernel then has Filter's part, which is empty.
	Sandbox *SandboxMsg
}

// Sockets bounds how many sockets of a kind may exist in a box at once.
type Sockets struct {
	Netlink uint32
	Inet    uint32 // TCP and UDP, IPv4 and IPv6 together
}

// SpawnMsg starts a command. Its descriptors: stdin, stdout, stderr, the cgroup directory
// in which the command starts, then Tasks v1 tasks files that the command enters first.
type SpawnMsg struct {
	Args    []string
	Env     []string
	Dir     string
	MakeDir bool
	TTY     bool // stdin is a terminal that becomes the controlling one
	Self    bool // the program is the agent's own binary, and Args[0] only its name
	UID     uint32
	GID     uint32
	Rlimits []Rlimit
	Tasks   uint32
}

// Rlimit is one resource limit of a command.
type Rlimit struct {
	Resource uint32
	Soft     uint64 // the limit in force; a program may raise it to Hard
	Hard     uint64
}

// SpawnFDs is the number of descriptors of a Spawn frame before the tasks files.
const SpawnFDs = 4

// FailedMsg reports which step of a request failed and why.
type FailedMsg struct {
	Step  string
	Errno syscall.Errno
}

func (m *FailedMsg) Error() string { return m.Step + ": " + m.Errno.Error() }

// Unwrap returns the errno.
func (m *FailedMsg) Unwrap() error { return m.Errno }

// SignalMsg sends a signal to the command's first process; SIGINT and SIGQUIT, which
// a terminal sends, to that process's group.
type SignalMsg struct{ Signal uint32 }

// ExitedMsg reports how the command's first process ended.
type ExitedMsg struct {
	Status uint32 // as of wait4(2)
}

// Marshal returns the body of an Init frame.
func (m *InitMsg) Marshal() []byte {
	var e encoder
	e.bytes([]byte(m.Version))
	e.bool(m.Lifeline)
	e.u32(m.Linger)
	e.bytes(m.Filter)
	e.u32(m.HomeTasks)
	e.u32(m.Spawners)
	e.u32(m.Sockets.Netlink)
	e.u32(m.Sockets.Inet)
	e.bool(m.Unpacks)
	e.sandbox(m.Sandbox)
	return e.b
}

// Unmarshal parses the body of an Init frame.
func (m *InitMsg) Unmarshal(b []byte) error {
	d := decoder{b: b}
	m.Version = string(d.bytes())
	m.Lifeline = d.bool()
	m.Linger = d.u32()
	m.Filter = d.bytes()
	m.HomeTasks = d.u32()
	m.Spawners = d.u32()
	m.Sockets = Sockets{Netlink: d.u32(), Inet: d.u32()}
	m.Unpacks = d.bool()
	m.Sandbox = d.sandbox()
	if m.Spawners == 0 || m.Spawners > MaxSpawners {
		d.bad = true
	}
	return d.done("init")
}

// Marshal returns the body of a Spawn frame.
func (m *SpawnMsg) Marshal() []byte {
	var e encoder
	e.strings(m.Args)
	e.strings(m.Env)
	e.bytes([]byte(m.Dir))
	e.bool(m.MakeDir)
	e.bool(m.TTY)
	e.bool(m.Self)
	e.u32(m.UID)
	e.u32(m.GID)
	e.u32(uint32(len(m.Rlimits)))
	for _, r := range m.Rlimits {
		e.u32(r.Resource)
		e.u64(r.Soft)
		e.u64(r.Hard)
	}
	e.u32(m.Tasks)
	return e.b
}

// Unmarshal parses the body of a Spawn frame.
func (m *SpawnMsg) Unmarshal(b []byte) error {
	d := decoder{b: b}
	m.Args = d.strings()
	m.Env = d.strings()
	m.Dir = string(d.bytes())
	m.MakeDir = d.bool()
	m.TTY = d.bool()
	m.Self = d.bool()
	m.UID = d.u32()
	m.GID = d.u32()
	n := d.u32()
	if n > MaxRlimits {
		d.bad = true
	}
	for i := uint32(0); i < n && !d.bad; i++ {
		m.Rlimits = append(m.Rlimits, Rlimit{Resource: d.u32(), Soft: d.u64(), Hard: d.u64()})
	}
	m.Tasks = d.u32()
	if err := d.done("spawn"); err != nil {
		return err
	}
	if len(m.Args) == 0 || m.UID >= math.MaxInt32 || m.GID >= math.MaxInt32 {
		return fmt.Errorf("parsing spawn: empty argv or bad id: %w", ErrProtocol)
	}
	return nil
}

// Marshal returns the body of a Failed frame.
func (m *FailedMsg) Marshal() []byte {
	var e encoder
	e.u32(uint32(m.Errno))
	e.bytes([]byte(m.Step))
	return e.b
}

// Unmarshal parses the body of a Failed frame.
func (m *FailedMsg) Unmarshal(b []byte) error {
	d := decoder{b: b}
	m.Errno = syscall.Errno(d.u32())
	m.Step = printable(d.bytes())
	return d.done("failed")
}

// printable bounds and cleans text of an untrusted peer before it reaches a log or a
// terminal.
func printable(b []byte) string {
	const most = 200
	if len(b) > most {
		b = b[:most]
	}
	out := make([]byte, len(b))
	for i, c := range b {
		if c < ' ' || c > '~' {
			c = '?'
		}
		out[i] = c
	}
	return string(out)
}

// Marshal returns the body of a Signal frame.
func (m *SignalMsg) Marshal() []byte { return (&encoder{}).u32(m.Signal).b }

// Unmarshal parses the body of a Signal frame.
func (m *SignalMsg) Unmarshal(b []byte) error {
	d := decoder{b: b}
	m.Signal = d.u32()
	return d.done("signal")
}

// Marshal returns the body of an Exited frame.
func (m *ExitedMsg) Marshal() []byte { return (&encoder{}).u32(m.Status).b }

// Unmarshal parses the body of an Exited frame.
func (m *ExitedMsg) Unmarshal(b []byte) error {
	d := decoder{b: b}
	m.Status = d.u32()
	return d.done("exited")
}

// Steps of starting a command that a FailedMsg names and that clients translate into errors
// of their own.
const (
	StepClone = "starting process"
	StepMkdir = "creating working directory"
	StepChdir = "entering working directory"
	StepCwd   = "checking working directory"
	StepExec  = "executing program"
)
