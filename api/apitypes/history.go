package apitypes

import "time"

// ExecRecord is a command or managed process that has ended.
type ExecRecord struct {
	ID        uint64    `json:"id" doc:"Later ones have higher numbers."`
	Tenant    string    `json:"tenant"`
	Session   string    `json:"session"`
	Box       string    `json:"box,omitempty"`
	Process   string    `json:"process,omitempty" doc:"ID of the managed process; absent: a command."`
	Profile   string    `json:"profile,omitempty"`
	Actor     string    `json:"actor,omitempty" doc:"Who ran the command."`
	Request   string    `json:"request,omitempty" doc:"ID of the request that ran the command."`
	Argv      []string  `json:"argv,omitempty" doc:"The first 4 KiB, as far as the profile keeps it."`
	StartedAt time.Time `json:"started_at"`
	EndedAt   time.Time `json:"ended_at"`
	ExitCode  *int      `json:"exit_code" nullable:"true" doc:"0 to 255; null if it did not exit by itself."`
	Signal    string    `json:"signal,omitempty" doc:"Signal that ended it, such as SIGKILL."`
	Verdict   string    `json:"verdict" doc:"As in ExecResult."`
	Limit     string    `json:"limit,omitempty" doc:"The limit behind the verdict, such as \"64 MiB\"."`
	Receipt   Receipt   `json:"receipt"`

	Stdout        string   `json:"stdout,omitempty" doc:"Standard output, if the request wants output, the profile keeps it and it is UTF-8."`
	StdoutBase64  []byte   `json:"stdout_base64,omitempty" doc:"Standard output in base64, if it is not UTF-8."`
	StdoutMissing *Missing `json:"stdout_missing,omitempty" doc:"The gap in standard output."`
	Stderr        string   `json:"stderr,omitempty"`
	StderrBase64  []byte   `json:"stderr_base64,omitempty"`
	StderrMissing *Missing `json:"stderr_missing,omitempty"`
}

// Out returns the standard output, whether it was sent as text or as base64.
func (r *ExecRecord) Out() []byte { return either(r.Stdout, r.StdoutBase64) }

// Err returns the standard error, whether it was sent as text or as base64.
func (r *ExecRecord) Err() []byte { return either(r.Stderr, r.StderrBase64) }

// History is what ran and has ended, newest first.
type History struct {
	Execs []ExecRecord `json:"execs" nullable:"false"`
	Next  uint64       `json:"next,omitempty" doc:"There is more: ask again with before=next."`
}

// UsageRow is what was used by everything that ended in a period. Figures that the host could not
// measure count as 0.
type UsageRow struct {
	Tenant       string   `json:"tenant"`
	Profile      string   `json:"profile,omitempty" doc:"If by has profile."`
	User         string   `json:"user,omitempty" doc:"If by has user: the label user of the session; absent: sessions without it."`
	Session      string   `json:"session,omitempty" doc:"If by has session; * stands for sessions that are not told apart any more."`
	Day          string   `json:"day,omitempty" doc:"If by has day: YYYY-MM-DD in UTC."`
	Execs        int64    `json:"execs" doc:"Commands."`
	Processes    int64    `json:"processes" doc:"Managed processes."`
	CPU          Duration `json:"cpu" doc:"Seconds of processor time, user and system."`
	Wall         Duration `json:"wall" doc:"Seconds between start and end, added up."`
	IOReadBytes  int64    `json:"io_read_bytes" doc:"From block devices."`
	IOWriteBytes int64    `json:"io_write_bytes" doc:"To block devices."`
	// A Duration is too short for all sessions of a large tenant.
	SessionTime      float64 `json:"session_time" doc:"For how long sessions have had a box, added up: seconds of wall time."`
	MemoryGiBSeconds float64 `json:"memory_gib_seconds" doc:"Memory of their boxes multiplied with time."`
}

// UsageList is the usage of tenants, split by the parts that the request names.
type UsageList struct {
	Usage []UsageRow `json:"usage" nullable:"false"`
}
