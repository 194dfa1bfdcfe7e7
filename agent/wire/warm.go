package wire

import "fmt"

// Frame types of the conversation about zygotes.
const (
	TypeZygote  = 8  // client → agent: ZygoteMsg
	TypeWarm    = 9  // agent → client: WarmMsg
	TypeSpare   = 10 // client → agent: SpareMsg
	TypeWaiting = 11 // agent → client: the spare waits for its command; no body
	TypeUse     = 12 // client → agent: SpawnMsg without TTY, Self and Tasks
	TypeTaken   = 13 // agent → client: the spare runs the command itself; no body
)

// MaxWarm is how many zygotes and spares together a client may have in a box.
const MaxWarm = 64

// Steps that a FailedMsg about a spare names.
const (
	// StepSpare: there is no such spare (ESRCH), it cannot become this command (ENOEXEC), or it did
	// not. No code of the command has run.
	StepSpare = "using warm interpreter"
	// StepUnsure: the spare was killed, but may have begun to run the command.
	StepUnsure = "killing warm interpreter"
)

// ZygoteMsg starts a zygote. Spawn.Args is its command, to which the agent adds its own
// program. Its descriptors are those of a Spawn frame.
type ZygoteMsg struct {
	Preload []string
	Spawn   SpawnMsg
}

// WarmMsg says that a zygote can make spares or, with a reason, that it never will.
type WarmMsg struct{ Why string }

// SpareMsg asks zygote Zygote for a spare. Its descriptors: Tasks v1 tasks files of the slot of
// the spare, and its cgroup.procs on cgroup2, all open for writing.
type SpareMsg struct{ Zygote, Tasks uint32 }

// SpareFDs returns the number of descriptors of m.
func (m *SpareMsg) SpareFDs() int { return int(m.Tasks) + 1 }

// UseFDs is the number of descriptors of a Use frame: stdin, stdout and stderr.
const UseFDs = 3

// Marshal returns the body of a Zygote frame.
func (m *ZygoteMsg) Marshal() []byte {
	var e encoder
	e.strings(m.Preload)
	e.bytes(m.Spawn.Marshal())
	return e.b
}

// Unmarshal parses the body of a Zygote frame.
func (m *ZygoteMsg) Unmarshal(b []byte) error {
	d := decoder{b: b}
	m.Preload = d.strings()
	spawn := d.bytes()
	if err := d.done("zygote"); err != nil {
		return err
	}
	if err := m.Spawn.Unmarshal(spawn); err != nil {
		return err
	}
	if m.Spawn.TTY || m.Spawn.Self {
		return fmt.Errorf("parsing zygote: a terminal or a builtin: %w", ErrProtocol)
	}
	return nil
}

// Marshal returns the body of a Warm frame.
func (m *WarmMsg) Marshal() []byte {
	var e encoder
	e.bytes([]byte(m.Why))
	return e.b
}

// Unmarshal parses the body of a Warm frame.
func (m *WarmMsg) Unmarshal(b []byte) error {
	d := decoder{b: b}
	m.Why = printable(d.bytes())
	return d.done("warm")
}

// Marshal returns the body of a Spare frame.
func (m *SpareMsg) Marshal() []byte { return (&encoder{}).u32(m.Zygote).u32(m.Tasks).b }

// Unmarshal parses the body of a Spare frame.
func (m *SpareMsg) Unmarshal(b []byte) error {
	d := decoder{b: b}
	m.Zygote, m.Tasks = d.u32(), d.u32()
	return d.done("spare")
}
