package apitypes

import (
	"time"

	"github.com/boxd/boxd/engine/spec"
)

// ExecRequest asks for one command to be run.
type ExecRequest struct {
	Argv           []string          `json:"argv,omitempty" doc:"Program and arguments, never run through a shell. Either this or shell; without both, the default command of the image."`
	Shell          string            `json:"shell,omitempty" doc:"A line for /bin/sh -c."`
	Env            map[string]string `json:"env,omitempty" doc:"Added to the environment of the session."`
	Cwd            string            `json:"cwd,omitempty" doc:"Working directory; empty: the workspace."`
	Mkdir          bool              `json:"mkdir,omitempty" doc:"Make a missing working directory."`
	Stdin          string            `json:"stdin,omitempty" doc:"Standard input as UTF-8 text; empty: /dev/null."`
	StdinBase64    []byte            `json:"stdin_base64,omitempty" doc:"Standard input in base64, instead of stdin."`
	Timeout        Duration          `json:"timeout,omitempty" doc:"Seconds, or a string such as \"1m\"; 0: the session's. Clamped to the profile's cap."`
	Grace          Duration          `json:"grace,omitempty" doc:"Seconds between SIGTERM and SIGKILL; 0: 2."`
	OutputLimit    Size              `json:"output_limit,omitempty" doc:"Bytes that the command may write to stdout and to stderr, each; more ends it. 0: the server's."`
	User           *spec.User        `json:"user,omitempty" doc:"User in the box; absent: the session's."`
	KeepBackground bool              `json:"keep_background,omitempty" doc:"Leave processes running that outlive the command."`
	Zygote         string            `json:"zygote,omitempty" doc:"Warm interpreter of the profile that takes the command over; empty: one that matches the command, if there is one."`
	Outputs        []string          `json:"outputs,omitempty" doc:"Return the files that the command has made or changed and that match: *.png, out or **/*.csv, relative to the working directory; a directory stands for everything in it."`
	Session        *SessionSpec      `json:"session,omitempty" doc:"Make the session with this if it is not there; conflicts if it is there and differs."`
}

// RunProtocol is what a client of POST /v1/run upgrades to that passes the descriptors of the command.
const RunProtocol = "boxd-run"

// RunRequest asks for one command in a box of its own, of which nothing stays.
type RunRequest struct {
	Argv        []string          `json:"argv,omitempty" doc:"Program and arguments, never run through a shell. Either this or shell."`
	Shell       string            `json:"shell,omitempty" doc:"A line for /bin/sh -c."`
	Env         map[string]string `json:"env,omitempty" doc:"Environment of the command."`
	Cwd         string            `json:"cwd,omitempty" doc:"Working directory; empty: the home directory."`
	Mkdir       bool              `json:"mkdir,omitempty" doc:"Make a missing working directory."`
	Stdin       string            `json:"stdin,omitempty" doc:"Standard input as UTF-8 text; empty: /dev/null."`
	StdinBase64 []byte            `json:"stdin_base64,omitempty" doc:"Standard input in base64, instead of stdin."`
	Timeout     Duration          `json:"timeout,omitempty" doc:"Seconds, or a string such as \"1m\"; 0: none. One above the profile's cap is refused."`
	Grace       Duration          `json:"grace,omitempty" doc:"Seconds between SIGTERM and SIGKILL; 0: 2."`
	OutputLimit Size              `json:"output_limit,omitempty" doc:"Bytes that the command may write to stdout and to stderr, each; more ends it. 0: the server's, or none if the client passes descriptors."`
	Box         SessionSpec       `json:"box,omitzero" doc:"The box: profile (empty: \"run\"), engine, isolation, require, cpus, memory, pids, writable_root, tmp_size, upper_size, user, env, hostname, name and labels. Others must be absent. What is absent is boxd's own default, and a profile that gives anything else refuses the run."`
}

// RunEnd is the answer to a run whose client has passed descriptors.
type RunEnd struct {
	Result *ExecResult `json:"result,omitempty" doc:"How the command ended, without its output."`
	Error  *Problem    `json:"error,omitempty" doc:"Why there is no result."`
	// Started belongs to Error: the program may have run.
	Started bool `json:"started,omitempty" doc:"With error: the program may have run."`
}

// RunSignal is what the client of a run says while its command runs.
type RunSignal struct {
	Signal int  `json:"signal,omitempty" doc:"Number of a signal for the command."`
	Cancel bool `json:"cancel,omitempty" doc:"End the command, and answer with its result."`
}

// ExecResult says how a command ended. A command that fails is not an error of the API.
type ExecResult struct {
	ExitCode         *int         `json:"exit_code" nullable:"true" doc:"0 to 255; null if the command did not exit by itself."`
	Signal           string       `json:"signal,omitempty" doc:"Signal that ended it, such as SIGKILL."`
	Status           int          `json:"status" doc:"Exit status as a shell reports it: 128+n after signal n, 124 after a timeout, 137 for a lost box or too much output."`
	Verdict          string       `json:"verdict" doc:"exited, signaled, timeout, oom, pids-limit, disk-quota, output-limit, canceled or box-lost."`
	Limit            string       `json:"limit,omitempty" doc:"The limit behind the verdict, such as \"64 MiB\"."`
	Stdout           string       `json:"stdout,omitempty" doc:"Standard output, if it is UTF-8."`
	StdoutBase64     []byte       `json:"stdout_base64,omitempty" doc:"Standard output in base64, if it is not UTF-8."`
	Stderr           string       `json:"stderr,omitempty"`
	StderrBase64     []byte       `json:"stderr_base64,omitempty"`
	StdoutTruncated  bool         `json:"stdout_truncated,omitempty" doc:"There was more than is here: see stdout_missing."`
	StdoutMissing    *Missing     `json:"stdout_missing,omitempty" doc:"The gap in standard output, of which beginning and end are here."`
	StderrTruncated  bool         `json:"stderr_truncated,omitempty"`
	StderrMissing    *Missing     `json:"stderr_missing,omitempty"`
	Outputs          []OutputFile `json:"outputs,omitempty" doc:"The files that the request's outputs chose, sorted by path."`
	OutputsTruncated bool         `json:"outputs_truncated,omitempty" doc:"There are more than the 100 files that are here."`
	OutputsError     string       `json:"outputs_error,omitempty" doc:"Why there are no outputs."`
	Denied           []Denial     `json:"denied,omitempty" doc:"What boxd refused to the session while the command ran; other commands may have asked for it."`
	Warm             bool         `json:"warm,omitempty" doc:"A warm interpreter of the profile took the command over."`
	Receipt          Receipt      `json:"receipt"`
	Duration         Duration     `json:"duration" doc:"Seconds the request took in the daemon."`
	Created          bool         `json:"created,omitempty" doc:"This request made the session."`
	Recreated        bool         `json:"recreated,omitempty" doc:"This request gave the session a new box: background processes and files outside the workspace are gone."`
}

// Denial counts what boxd refused.
type Denial struct {
	Kind  string `json:"kind" doc:"network."`
	What  string `json:"what" doc:"Such as example.com:443; \"…\": all that are too many to be told apart."`
	Rule  string `json:"rule" doc:"The rule that refused it."`
	Count int64  `json:"count"`
}

// OutputFile is a file that a command has made or changed.
type OutputFile struct {
	Path          string    `json:"path" doc:"Relative to the working directory."`
	RawPath       []byte    `json:"path_base64,omitempty" doc:"The path, if it is not UTF-8."`
	Size          int64     `json:"size"`
	Mode          string    `json:"mode" doc:"Permission bits in octal, such as 0644."`
	ModTime       time.Time `json:"mod_time"`
	Content       string    `json:"content,omitempty" doc:"The content, if it is UTF-8."`
	ContentBase64 []byte    `json:"content_base64,omitempty" doc:"The content in base64, if it is not UTF-8."`
	Omitted       bool      `json:"omitted,omitempty" doc:"The content is not here, since the user may not read it, or all files together would be larger than 4 MiB: get it with files/content."`
}

// Bytes returns the content, whether it was sent as text or as base64.
func (f *OutputFile) Bytes() []byte { return either(f.Content, f.ContentBase64) }

// Missing is a gap in output that was too long to be kept.
type Missing struct {
	Offset int64 `json:"offset" doc:"Bytes of the stream before the gap, which are here."`
	Bytes  int64 `json:"bytes" doc:"Length of the gap. What follows in the output is the end of the stream."`
}

// Out returns the standard output, whether it was sent as text or as base64.
func (r *ExecResult) Out() []byte { return either(r.Stdout, r.StdoutBase64) }

// Err returns the standard error, whether it was sent as text or as base64.
func (r *ExecResult) Err() []byte { return either(r.Stderr, r.StderrBase64) }

func either(text string, raw []byte) []byte {
	if len(raw) > 0 {
		return raw
	}
	return []byte(text)
}

// Receipt says what a command and its descendants used. Figures that the host cannot
// measure are absent.
type Receipt struct {
	Wall             Duration  `json:"wall" doc:"Seconds."`
	User             *Duration `json:"user,omitempty" doc:"Seconds of processor time in user mode."`
	System           *Duration `json:"system,omitempty"`
	MemoryPeak       *int64    `json:"memory_peak,omitempty" doc:"Bytes, page cache included."`
	PIDsPeak         *int64    `json:"pids_peak,omitempty"`
	StdoutBytes      *int64    `json:"stdout_bytes,omitempty"`
	StderrBytes      *int64    `json:"stderr_bytes,omitempty"`
	Throttled        *Duration `json:"throttled,omitempty" doc:"Seconds that the CPU limit made it wait."`
	IOReadBytes      *int64    `json:"io_read_bytes,omitempty"`
	IOWriteBytes     *int64    `json:"io_write_bytes,omitempty"`
	OOMKills         *int64    `json:"oom_kills,omitempty"`
	PIDsLimitReached *int64    `json:"pids_limit_reached,omitempty" doc:"Forks that were refused."`
}

// ExecEvent is one line of a streamed exec: a piece of output, or its end.
type ExecEvent struct {
	Stream     string      `json:"stream,omitempty" doc:"stdout or stderr."`
	Offset     int64       `json:"offset" doc:"Of the first byte, from the start of the stream."`
	Data       string      `json:"data,omitempty" doc:"The piece, if it is UTF-8."`
	DataBase64 []byte      `json:"data_base64,omitempty" doc:"The piece in base64, if it is not UTF-8."`
	Result     *ExecResult `json:"result,omitempty" doc:"How it ended; the last line."`
	Error      *Problem    `json:"error,omitempty" doc:"Why there is no result; the last line."`
}

// Bytes returns the piece of output, whether it was sent as text or as base64.
func (e *ExecEvent) Bytes() []byte { return either(e.Data, e.DataBase64) }
