package protocol

import "time"

// SessionInfo describes a session, with the values that the client requested.
type SessionInfo struct {
	SessionID        string  `json:"session_id"`
	BackendName      string  `json:"backend_name"`
	BackendSessionID string  `json:"backend_session_id"`
	Image            string  `json:"image"`
	Network          string  `json:"network"`
	HostPath         *string `json:"host_path"`
	HostPathMode     string  `json:"host_path_mode"`
	MountPath        string  `json:"mount_path"`
	Persistent       bool    `json:"persistent"`
	CPUs             float64 `json:"cpus"`
	MemoryMB         int64   `json:"memory_mb"`
	PidsLimit        int64   `json:"pids_limit"`
	ReadOnlyRootfs   bool    `json:"read_only_rootfs"`
	WorkspaceQuotaMB int64   `json:"workspace_quota_mb"`
	CreatedAt        string  `json:"created_at"`   // Time
	LastUsedAt       string  `json:"last_used_at"` // Time

	// Warnings, which the reference server does not send, say which requested settings the
	// session lacks.
	Warnings []string `json:"warnings,omitempty"`

	// Only in replies to get_session, and only if there are processes:
	ManagedProcesses map[string]ProcessInfo `json:"managed_processes,omitempty"`
	ManagedProcess   *ProcessInfo           `json:"managed_process,omitempty"`
}

// How a command ended.
const (
	Completed = "completed"
	TimedOut  = "timed_out"
)

// ExecutionResult describes how a command ended.
type ExecutionResult struct {
	SessionID   string `json:"session_id"`
	BackendName string `json:"backend_name"`
	Status      string `json:"status"` // Completed or TimedOut
	ExitCode    *int   `json:"exit_code"`
	Stdout      string `json:"stdout"`
	Stderr      string `json:"stderr"`
	DurationMS  int64  `json:"duration_ms"`
}

// States of a managed process.
const (
	Running = "running"
	Exited  = "exited"
)

// ProcessInfo describes a managed process.
type ProcessInfo struct {
	SessionID     string   `json:"session_id"`
	ProcessID     string   `json:"process_id"`
	Status        string   `json:"status"` // Running or Exited
	Command       string   `json:"command"`
	Args          []string `json:"args"` // never nil
	Cwd           string   `json:"cwd"`
	EnvKeys       []string `json:"env_keys"` // sorted, never nil
	Attached      bool     `json:"attached"`
	StartedAt     string   `json:"started_at"` // Time
	ExitedAt      *string  `json:"exited_at"`  // Time
	ExitCode      *int     `json:"exit_code"`
	StderrPreview string   `json:"stderr_preview"`
}

// Time formats a point in time for replies: UTC, microseconds, "Z".
func Time(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000000Z") }
