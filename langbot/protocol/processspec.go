package protocol

import "encoding/json"

// ProcessSpec is what a client says of a managed process.
type ProcessSpec struct {
	ProcessID string            `json:"process_id"`
	Command   string            `json:"command"`
	Args      []string          `json:"args"`
	Env       map[string]string `json:"env"`
	Cwd       string            `json:"cwd"`
	MemoryMB  int64             `json:"memory_mb"` // 0: the session's
}

// DefaultProcess is the process id where none is given.
const DefaultProcess = "default"

// ParseProcessSpec reads and checks a spec. Errors are of class BoxValidation.
func ParseProcessSpec(spec json.RawMessage) (ProcessSpec, error) {
	return ProcessSpec{}, nil
}
