package mcp

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/relay"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// newName returns a name that nobody guesses.
func newName() string { return strings.ToLower(rand.Text()[:10]) }

type startArgs struct {
	inSession
	Command string            `json:"command,omitempty" jsonschema:"A line for /bin/sh -c. Either this or argv."`
	Argv    []string          `json:"argv,omitempty" jsonschema:"Program and arguments, run without a shell."`
	Process string            `json:"process,omitempty" jsonschema:"Name for the process; empty: a new one. The name of a process that has ended can be used again."`
	Cwd     string            `json:"cwd,omitempty" jsonschema:"Directory to run in, absolute or relative to the workspace; empty: the workspace."`
	Env     map[string]string `json:"env,omitempty" jsonschema:"Environment variables to add."`
	TTY     bool              `json:"tty,omitempty" jsonschema:"Give it a terminal."`
	Wait    *float64          `json:"wait_seconds,omitempty" jsonschema:"Wait this long for output, so that a start that fails is seen; absent: 1."`
}

type outputArgs struct {
	inSession
	Process string   `json:"process,omitempty" jsonschema:"Name of the process; empty: list all processes."`
	Stream  string   `json:"stream,omitempty" jsonschema:"stdout (the default) or stderr."`
	Offset  *int64   `json:"offset,omitempty" jsonschema:"Offset of the first byte, such as next_offset of the last call; a negative one counts from the end. Absent: the end of the output."`
	Wait    *float64 `json:"wait_seconds,omitempty" jsonschema:"Wait up to this long, at most 60, until there is output or the process ends; absent: 0."`
}

type inputArgs struct {
	inSession
	Process string   `json:"process" jsonschema:"Name of the process."`
	Text    string   `json:"text,omitempty" jsonschema:"What to write to its standard input. A line needs its newline."`
	EOF     bool     `json:"eof,omitempty" jsonschema:"End its standard input afterwards."`
	Wait    *float64 `json:"wait_seconds,omitempty" jsonschema:"Wait up to this long, at most 60, for the answer; absent: 1."`
}

type stopArgs struct {
	inSession
	Process string  `json:"process" jsonschema:"Name of the process."`
	Grace   float64 `json:"grace_seconds,omitempty" jsonschema:"Seconds between SIGTERM and SIGKILL; 0: the default."`
	Forget  bool    `json:"forget,omitempty" jsonschema:"Forget the process with its output, too."`
}

// processResult is the structured output of the tools about processes.
type processResult struct {
	Process    string         `json:"process,omitempty" jsonschema:"Name of the process, for process_output, process_input and stop_process."`
	State      string         `json:"state,omitempty" jsonschema:"starting, running, exited, stopping, stopped or failed."`
	ExitCode   *int           `json:"exit_code,omitempty"`
	Verdict    string         `json:"verdict,omitempty" jsonschema:"How it ended: exited, signaled, oom and others."`
	Output     string         `json:"output,omitempty" jsonschema:"A part of the stream."`
	NotText    int            `json:"not_text,omitempty" jsonschema:"So many bytes of the part are not UTF-8; output has them as \\xNN."`
	Stream     string         `json:"stream,omitempty"`
	Offset     int64          `json:"offset,omitempty" jsonschema:"Offset of the part in the stream."`
	NextOffset int64          `json:"next_offset,omitempty" jsonschema:"Where the next call should continue."`
	Gone       int64          `json:"gone,omitempty" jsonschema:"Bytes before the part that were asked for and are no longer kept."`
	More       bool           `json:"more,omitempty" jsonschema:"There is more output at next_offset already."`
	Processes  []processState `json:"processes,omitempty" jsonschema:"All processes, if none was named."`
}

type processState struct {
	Process  string   `json:"process"`
	State    string   `json:"state"`
	Argv     []string `json:"argv"`
	ExitCode *int     `json:"exit_code,omitempty"`
}

func (t *tools) addProcesses() {
	open := t.profile.Network
	add(t, "start_process", "Start a process", "Start a process that goes on running after this call, such as a server or a long job. Its name is for process_output, process_input and stop_process. "+
		"Its output is kept: of each stream the last 1 MiB.", kind{destructive: true, openWorld: open}, (*box).startProcess)
	add(t, "process_output", "Read the output of a process", "Read a part of the output of a process of start_process, running or ended, and its state; or wait for either.",
		kind{readOnly: true, idempotent: true}, (*box).processOutput)
	add(t, "process_input", "Write to a process", "Write to the standard input of a process of start_process, and return what it writes to standard output then.",
		kind{destructive: true, openWorld: open}, (*box).processInput)
	add(t, "stop_process", "Stop a process", "End a process of start_process with everything that it started. Its output stays, unless forget is set.",
		kind{destructive: true, idempotent: true}, (*box).stopProcess)
}

// Bounds of waits of one call. Clients give up a call after a minute or so.
const (
	maxWait = 60 * time.Second
	// settle is how long output may pause before a wait for it ends.
	settle = 200 * time.Millisecond
)

// waitOf returns how long to wait.
func waitOf(seconds *float64, absent time.Duration) (time.Duration, error) {
	switch {
	case seconds == nil:
		return absent, nil
	case !(*seconds >= 0 && *seconds <= maxWait.Seconds()):
		return 0, fmt.Errorf("wait_seconds %v: must be 0 to %v", *seconds, maxWait.Seconds())
	}
	return time.Duration(*seconds * float64(time.Second)), nil
}

func (b *box) startProcess(ctx context.Context, in startArgs) (*sdk.CallToolResult, *processResult, error) {
	wait, err := waitOf(in.Wait, time.Second)
	if err != nil {
		return nil, nil, err
	}
	q := apitypes.ProcessRequest{ID: in.Process, Shell: in.Command, Argv: in.Argv, Cwd: b.dir(in.Cwd), Env: in.Env, DropOldest: true}
	if q.ID == "" {
		q.ID = "p-" + newName()
	}
	if in.TTY {
		q.TTY = &apitypes.WindowSize{Rows: 24, Cols: 80}
	}
	p, err := b.c.Start(ctx, b.session.ID, q)
	if err != nil {
		return nil, nil, err
	}
	return b.part(ctx, p.ID, "stdout", 0, wait)
}

func (b *box) processOutput(ctx context.Context, in outputArgs) (*sdk.CallToolResult, *processResult, error) {
	wait, err := waitOf(in.Wait, 0)
	if err != nil {
		return nil, nil, err
	}
	if in.Process == "" {
		list, err := b.c.Processes(ctx, b.session.ID)
		if err != nil {
			return nil, nil, err
		}
		out := &processResult{Processes: []processState{}}
		text := ""
		for _, p := range list {
			out.Processes = append(out.Processes, processState{p.ID, p.State, p.Argv, p.ExitCode})
			text += fmt.Sprintf("%s: %s: %q\n", p.ID, p.State, p.Argv)
		}
		if text == "" {
			text = "there are no processes of start_process"
		}
		return textResult(text), out, nil
	}
	if in.Stream == "" {
		in.Stream = "stdout"
	}
	offset := int64(-shownOutput)
	if in.Offset != nil {
		offset = *in.Offset
	}
	return b.part(ctx, in.Process, in.Stream, offset, wait)
}

func (b *box) processInput(ctx context.Context, in inputArgs) (*sdk.CallToolResult, *processResult, error) {
	wait, err := waitOf(in.Wait, time.Second)
	if err != nil {
		return nil, nil, err
	}
	p, err := b.c.Process(ctx, b.session.ID, in.Process)
	if err != nil {
		return nil, nil, err
	}
	end := int64(0)
	if p.Stdout != nil {
		end = p.Stdout.End
	}
	if err := b.write(ctx, in); err != nil {
		return nil, nil, err
	}
	return b.part(ctx, in.Process, "stdout", end, wait)
}

// write writes to a process and returns when it, or its buffer in the box, has accepted all of it.
func (b *box) write(ctx context.Context, in inputArgs) error {
	ctx, cancel := context.WithTimeout(ctx, maxWait)
	defer cancel()
	conn, err := b.c.AttachOnce(ctx, b.session.ID, in.Process, client.AttachOptions{Write: true, TakeOver: true, Since: relay.Since{Stdout: relay.Position{Kind: relay.End}, Stderr: relay.Position{Kind: relay.End}}})
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	defer conn.Close()
	if !conn.Hello().HasStdin {
		return fmt.Errorf("process %q: its standard input has ended", in.Process)
	}
	wrote := make(chan error, 1)
	go func() { // joined below
		_, err := io.WriteString(conn, in.Text)
		if err == nil && in.EOF {
			err = conn.CloseStdin()
		}
		wrote <- err
	}()
	want := conn.Hello().StdinAccepted + int64(len(in.Text))
	if in.Text == "" && !in.EOF {
		return <-wrote
	}
	for {
		event, err := conn.Recv()
		if state, ok := event.(relay.StdinState); ok && (state.Closed || state.Accepted >= want && !in.EOF) {
			if err := <-wrote; err != nil || state.Accepted < want {
				return fmt.Errorf("process %q: it has closed its standard input after %d bytes", in.Process, state.Accepted-want+int64(len(in.Text)))
			}
			return nil
		}
		if _, ended := event.(relay.Exited); ended || err != nil {
			conn.Close()
			failed := <-wrote
			switch {
			case ctx.Err() != nil:
				return fmt.Errorf("process %q: it does not read its standard input", in.Process)
			case ended || errors.Is(failed, syscall.EPIPE):
				return fmt.Errorf("process %q: it has ended before it had read its input", in.Process)
			}
			return err
		}
	}
}

func (b *box) stopProcess(ctx context.Context, in stopArgs) (*sdk.CallToolResult, *processResult, error) {
	q := apitypes.StopRequest{}
	if in.Grace > 0 {
		grace := seconds(in.Grace)
		q.Grace = &grace
	}
	p, err := b.c.Stop(ctx, b.session.ID, in.Process, q)
	if err == nil && in.Forget {
		err = b.c.RemoveProcess(ctx, b.session.ID, in.Process)
	}
	if err != nil {
		return nil, nil, err
	}
	out := &processResult{Process: p.ID, State: p.State, ExitCode: p.ExitCode, Verdict: p.Verdict}
	return textResult(stateLine(out)), out, nil
}

// part returns a part of an output stream. If there is nothing at offset yet, it waits for output, or
// the end of the process.
func (b *box) part(ctx context.Context, process, stream string, offset int64, wait time.Duration) (*sdk.CallToolResult, *processResult, error) {
	logs, err := b.c.Logs(ctx, b.session.ID, process, client.LogOptions{Stream: stream, Offset: offset, Limit: shownOutput})
	if err != nil {
		return nil, nil, err
	}
	text, err := io.ReadAll(logs)
	logs.Close()
	if err != nil {
		return nil, nil, err
	}
	at, gone := logs.Offset, logs.Gap
	if len(text) == 0 && wait > 0 {
		stop := b.reportProgress(ctx, func() string { return "waiting for output" })
		text, err = b.await(ctx, process, stream, at, wait)
		stop()
		if err != nil {
			return nil, nil, err
		}
	}
	p, err := b.c.Process(ctx, b.session.ID, process)
	if err != nil {
		return nil, nil, err
	}
	if at > max(offset, 0) { // not where the client cuts: a part begins with a whole character
		n := 0
		for n < min(len(text), utf8.UTFMax-1) && !utf8.RuneStart(text[n]) {
			n++
		}
		text, at = text[n:], at+int64(n)
	}
	text = wholeCharacters(text)
	out := &processResult{Process: process, State: p.State, ExitCode: p.ExitCode, Verdict: p.Verdict, Stream: stream,
		Offset: at, NextOffset: at + int64(len(text)), Gone: gone}
	out.Output, out.NotText = plain(text)
	if bounds := map[string]*apitypes.Stream{"stdout": p.Stdout, "stderr": p.Stderr}[stream]; bounds != nil {
		out.More = bounds.End > out.NextOffset
	}
	say := stateLine(out) + "\n"
	if gone > 0 {
		say += fmt.Sprintf("[%d bytes before this are no longer kept]\n", gone)
	}
	say += fmt.Sprintf("%s from offset %d, next offset %d%s:\n%s", stream, at, out.NextOffset, notText(out.NotText), out.Output)
	if p.Stderr != nil && stream == "stdout" && p.Stderr.End > 0 {
		say += fmt.Sprintf("\n[stderr has %d bytes]", p.Stderr.End)
	}
	return textResult(say), out, nil
}

// await waits for output from offset on, and returns it once it pauses.
func (b *box) await(ctx context.Context, process, stream string, offset int64, wait time.Duration) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	logs, err := b.c.Logs(ctx, b.session.ID, process, client.LogOptions{Stream: stream, Offset: offset, Limit: shownOutput, Follow: true})
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) { // there was no output, so not even a header
			return nil, nil
		}
		return nil, err
	}
	defer logs.Close()
	paused := time.AfterFunc(wait, cancel)
	defer paused.Stop()
	var text []byte
	piece := make([]byte, 4096)
	for {
		n, err := logs.Read(piece)
		text = append(text, piece[:n]...)
		if err == io.EOF || err != nil && ctx.Err() != nil {
			return text, nil
		}
		if err != nil {
			return text, fmt.Errorf("reading the output of process %q: %w", process, err)
		}
		paused.Reset(settle)
	}
}

// stateLine says in one line how a process is.
func stateLine(r *processResult) string {
	text := fmt.Sprintf("process %s: %s", r.Process, r.State)
	switch {
	case r.ExitCode != nil:
		text += fmt.Sprintf(", exit code %d", *r.ExitCode)
	case r.Verdict != "" && r.Verdict != "exited":
		text += ", " + r.Verdict
	}
	return text
}

func textResult(text string) *sdk.CallToolResult {
	return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: text}}}
}
