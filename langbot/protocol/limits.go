package protocol

import "encoding/json"

// Limits are the limits that box_init sets.
type Limits struct {
	MaxSessions           int64 `json:"max_sessions"`
	MaxManagedProcesses   int64 `json:"max_managed_processes"`
	MaxCompletedProcesses int64 `json:"max_completed_processes"`
	MaxAdmissionRecords   int64 `json:"max_admission_records"`
	MaxRPCFileBytes       int64 `json:"max_rpc_file_bytes"`
	// CompletedRetentionSec is not reported by box_status.
	CompletedRetentionSec int64 `json:"-"`
}

// limit describes one field of Limits.
type limit struct {
	name        string
	least, most int64
	initial     int64
	of          func(*Limits) *int64
}

var limits = []limit{
	{"max_sessions", 0, 5000, 64, func(l *Limits) *int64 { return &l.MaxSessions }},
	{"max_managed_processes", 0, 1024, 64, func(l *Limits) *int64 { return &l.MaxManagedProcesses }},
	{"max_completed_processes", 0, 10_000, 256, func(l *Limits) *int64 { return &l.MaxCompletedProcesses }},
	{"max_admission_records", 1, 250_000, 100_000, func(l *Limits) *int64 { return &l.MaxAdmissionRecords }},
	{"max_rpc_file_bytes", 1, 100 << 20, 20 << 20, func(l *Limits) *int64 { return &l.MaxRPCFileBytes }},
	{"completed_process_retention_sec", 0, 86_400, 300, func(l *Limits) *int64 { return &l.CompletedRetentionSec }},
}

// DefaultLimits returns the limits that hold unless box_init sets others.
func DefaultLimits() Limits {
	var l Limits
	for _, one := range limits {
		*one.of(&l) = one.initial
	}
	return l
}

// ParseLimits parses the value of "limits" in box_init. Missing limits have their defaults.
// Errors are of class ValueError.
func ParseLimits(raw json.RawMessage) (Limits, error) {
	l := DefaultLimits()
	if Falsy(raw) {
		return l, nil
	}
	if raw[0] != '{' {
		return Limits{}, Errorf(ValueError, "box.limits must be an object")
	}
	for _, one := range limits {
		v := Value(raw, one.name)
		if v == nil {
			continue
		}
		n, big, ok := field{ValueError, one.name, v}.literal()
		if !ok {
			return Limits{}, Errorf(ValueError, "box.limits.%s must be an integer", one.name)
		}
		if big || n < one.least || n > one.most {
			return Limits{}, Errorf(ValueError, "box.limits.%s must be between %d and %d", one.name, one.least, one.most)
		}
		*one.of(&l) = n
	}
	return l, nil
}

// Falsy reports whether raw is missing, or a value that counts as false in the peer's
// language: null, false, zero, or something empty.
func Falsy(raw json.RawMessage) bool {
	if len(raw) == 0 {
		return true
	}
	switch raw[0] {
	case '{', '[':
		m := nested(raw, raw[0])
		return !m.next() && m.err == nil
	case '"':
		return len(raw) == 2
	case 't', 'N', 'I':
		return false
	case 'n', 'f':
		return true
	}
	x, err := field{raw: raw}.number()
	return err == nil && x == 0
}
