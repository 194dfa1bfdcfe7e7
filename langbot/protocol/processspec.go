package protocol

import "encoding/json"

// ProcessSpec is a client's request for a managed process.
type ProcessSpec struct {
	ProcessID string            `json:"process_id"`
	Command   string            `json:"command"`
	Args      []string          `json:"args"`
	Env       map[string]string `json:"env"`
	Cwd       string            `json:"cwd"`
	MemoryMB  int64             `json:"memory_mb"` // 0: the session's limit only
}

// DefaultProcess is the default process ID.
const DefaultProcess = "default"

// ParseProcessSpec parses and checks a spec. Errors are of class BoxValidation.
func ParseProcessSpec(spec json.RawMessage) (ProcessSpec, error) {
	s := ProcessSpec{ProcessID: DefaultProcess, Args: []string{}, Env: map[string]string{}, Cwd: DefaultMountPath}
	m := object(spec)
	for m.next() {
		if err := s.set(field{BoxValidation, string(m.name), m.value}); err != nil {
			return ProcessSpec{}, err
		}
	}
	if m.err != nil {
		return ProcessSpec{}, Errorf(BoxValidation, "spec: %s: want an object", show(spec))
	}
	if s.Command == "" {
		return ProcessSpec{}, Errorf(BoxValidation, "command: is missing: it is required")
	}
	if n := s.size(); n > maxProcess {
		return ProcessSpec{}, Errorf(BoxValidation, "spec: command, args, cwd and names of env have %d bytes: must have at most %d together", n, maxProcess)
	}
	return s, nil
}

// maxProcess is the maximum size, in bytes, of the data that is kept for a process.
const maxProcess = 256 << 10

func (s *ProcessSpec) size() int {
	n := len(s.ProcessID) + len(s.Command) + len(s.Cwd)
	for _, arg := range s.Args {
		n += len(arg) + 1
	}
	for name := range s.Env {
		n += len(name) + 1
	}
	return n
}

// set parses one member. It ignores unknown ones.
func (s *ProcessSpec) set(f field) (err error) {
	switch f.name {
	case "process_id":
		s.ProcessID, err = f.str()
	case "command":
		s.Command, err = f.nonEmpty()
	case "args":
		s.Args, err = listOf(f, "strings", field.text)
	case "env":
		s.Env, err = f.env()
	case "cwd":
		s.Cwd, err = f.inside()
	case "memory_mb":
		s.MemoryMB, err = f.integer(0)
	}
	return err
}
