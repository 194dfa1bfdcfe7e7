package mcp

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"path"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/headtail"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// What a model is shown of each output stream; of a longer one, beginning and end.
const shownOutput = 16 << 10

// commandBounds are arguments of every tool that runs something and waits for it.
type commandBounds struct {
	Cwd     string            `json:"cwd,omitempty" jsonschema:"Directory to run in, absolute or relative to the workspace; empty: the workspace."`
	Env     map[string]string `json:"env,omitempty" jsonschema:"Environment variables to add."`
	Stdin   string            `json:"stdin,omitempty" jsonschema:"Standard input; empty: none."`
	Timeout float64           `json:"timeout_seconds,omitempty" jsonschema:"Seconds after which it is killed; 0: the default."`
	Outputs []string          `json:"outputs,omitempty" jsonschema:"Also return the files that it makes or changes and that match, such as *.png or out/**: images as images, text as text."`
}

type execArgs struct {
	inSession
	Command string   `json:"command,omitempty" jsonschema:"A line for /bin/sh -c. Either this or argv."`
	Argv    []string `json:"argv,omitempty" jsonschema:"Program and arguments, run without a shell."`
	commandBounds
}

type codeArgs struct {
	inSession
	Language string   `json:"language" jsonschema:"Language of the code."`
	Code     string   `json:"code" jsonschema:"The source code of a program. It starts anew with each call."`
	Args     []string `json:"args,omitempty" jsonschema:"Arguments of the program."`
	commandBounds
}

// commandResult is the structured output of exec and run_code.
type commandResult struct {
	ExitCode *int         `json:"exit_code" jsonschema:"0 to 255; null if it did not exit by itself."`
	Verdict  string       `json:"verdict" jsonschema:"exited, or what ended it: signaled, timeout, oom, pids-limit, disk-quota, output-limit, canceled or box-lost."`
	Limit    string       `json:"limit,omitempty" jsonschema:"The limit behind the verdict."`
	Signal   string       `json:"signal,omitempty"`
	Seconds  float64      `json:"seconds"`
	Stdout   shownStream  `json:"stdout"`
	Stderr   shownStream  `json:"stderr"`
	Files    []outputFile `json:"files,omitempty" jsonschema:"The files that outputs chose."`
	Denied   []string     `json:"denied,omitempty" jsonschema:"Connections that the network rules refused meanwhile."`
	Notice   string       `json:"notice,omitempty" jsonschema:"What happened to the box."`
}

// shownStream is what a result has of an output stream.
type shownStream struct {
	Text    string `json:"text" jsonschema:"The output; of a long one beginning and end, with a line in between that says what is left out."`
	Bytes   int64  `json:"bytes" jsonschema:"Length of the whole output."`
	NotText int    `json:"not_text,omitempty" jsonschema:"So many bytes of it are not UTF-8; text has them as \\xNN."`
	File    string `json:"file,omitempty" jsonschema:"File in the box that has the whole output: read_file reads parts of it."`
	Problem string `json:"problem,omitempty" jsonschema:"Why there is no file with the whole output."`
}

type outputFile struct {
	Path string `json:"path"`
	Size int64  `json:"size"`
	Text string `json:"text,omitempty" jsonschema:"The content, if it is text."`
	Note string `json:"note,omitempty"`
}

func (t *tools) addCommands() {
	changes := kind{destructive: true, openWorld: t.profile.Network}
	add(t, "exec", "Run a command", fmt.Sprintf("Run a command in the box and wait until it ends. It may take %s by default; for servers, and whatever should go on running, use start_process. "+
		"A non-zero exit code is a result, not an error of this tool.", t.profile.Timeout.D()), changes,
		func(b *box, ctx context.Context, in execArgs) (*sdk.CallToolResult, *commandResult, error) {
			return b.run(ctx, in.commandBounds, func(ctx context.Context, stdout, stderr io.Writer) (*apitypes.ExecResult, error) {
				return b.c.ExecStream(ctx, b.session.ID, apitypes.ExecRequest{Shell: in.Command, Argv: in.Argv, Cwd: b.dir(in.Cwd), Env: in.Env, Stdin: in.Stdin,
					Timeout: seconds(in.Timeout), Outputs: in.Outputs}, stdout, stderr)
			})
		})
	names := t.languages()
	if len(names) == 0 {
		return
	}
	add(t, "run_code", "Run code", "Run a program in one of the languages "+strings.Join(names, ", ")+", and wait until it ends. It has the limits of exec.", changes,
		func(b *box, ctx context.Context, in codeArgs) (*sdk.CallToolResult, *commandResult, error) {
			return b.run(ctx, in.commandBounds, func(ctx context.Context, stdout, stderr io.Writer) (*apitypes.ExecResult, error) {
				return b.c.CodeStream(ctx, b.session.ID, apitypes.CodeRequest{Language: in.Language, Code: in.Code, Args: in.Args, Cwd: b.dir(in.Cwd), Env: in.Env, Stdin: in.Stdin,
					Timeout: seconds(in.Timeout), Outputs: in.Outputs}, stdout, stderr)
			})
		})
}

// dir returns a directory of the box as the API wants it: absolute, or empty for the workspace.
func (b *box) dir(cwd string) string {
	if cwd == "" || path.IsAbs(cwd) {
		return cwd
	}
	return path.Join(cmp.Or(b.session.WorkspaceTarget, spec.WorkspaceTarget), cwd)
}

func seconds(n float64) apitypes.Duration { return apitypes.Duration(n * float64(time.Second)) }

// run runs a command and shows its output.
func (b *box) run(ctx context.Context, in commandBounds, start func(ctx context.Context, stdout, stderr io.Writer) (*apitypes.ExecResult, error)) (*sdk.CallToolResult, *commandResult, error) {
	name := "/tmp/boxd-output/" + newName()
	stdout, stderr := newStream(ctx, b, name+".stdout"), newStream(ctx, b, name+".stderr")
	stop := b.reportProgress(ctx, func() string {
		return fmt.Sprintf("%d bytes of output", stdout.written()+stderr.written())
	})
	began := time.Now()
	res, err := start(ctx, stdout, stderr)
	stop()
	out := &commandResult{Stdout: stdout.end(), Stderr: stderr.end()}
	if err != nil {
		return nil, nil, err
	}
	out.ExitCode, out.Verdict, out.Limit, out.Signal, out.Seconds = res.ExitCode, res.Verdict, res.Limit, res.Signal, time.Since(began).Seconds()
	for _, d := range res.Denied {
		out.Denied = append(out.Denied, fmt.Sprintf("%s, by the rule %s, %d times", d.What, d.Rule, d.Count))
	}
	switch {
	case b.session.Recreated || res.Recreated:
		out.Notice = "The box was replaced before this: processes, and files outside of the working directory, are gone."
	case b.session.Created || res.Created:
		out.Notice = "The box is new."
	}
	result := &sdk.CallToolResult{}
	say := func(text string) { result.Content = append(result.Content, &sdk.TextContent{Text: text}) }
	var head strings.Builder
	if out.Notice != "" {
		head.WriteString(out.Notice + "\n")
	}
	head.WriteString(ending(out) + "\n")
	for _, d := range out.Denied {
		head.WriteString("refused by the network rules: " + d + "\n")
	}
	if out.Stdout.Text != "" {
		head.WriteString("stdout" + notText(out.Stdout.NotText) + ":\n" + out.Stdout.Text)
	}
	if out.Stderr.Text != "" {
		if out.Stdout.Text != "" && !strings.HasSuffix(out.Stdout.Text, "\n") {
			head.WriteString("\n")
		}
		head.WriteString("stderr" + notText(out.Stderr.NotText) + ":\n" + out.Stderr.Text)
	}
	say(head.String())
	for _, s := range []shownStream{out.Stdout, out.Stderr} {
		if s.File != "" {
			result.Content = append(result.Content, &sdk.ResourceLink{URI: fileURI(s.File), Name: path.Base(s.File), Description: "the whole output", MIMEType: "text/plain", Size: &s.Bytes})
		}
	}
	for _, f := range res.Outputs {
		one := outputFile{Path: f.Path, Size: f.Size}
		content := cmp.Or(string(f.ContentBase64), f.Content)
		at := path.Join(cmp.Or(b.dir(in.Cwd), b.dir(".")), f.Path)
		switch mime := imageType([]byte(content)); {
		case mime != "" && len(content) <= maxImage:
			one.Note = "the image is part of this result"
			result.Content = append(result.Content, &sdk.TextContent{Text: "file " + f.Path + ":"}, &sdk.ImageContent{Data: []byte(content), MIMEType: mime})
		case !f.Omitted && len(f.ContentBase64) == 0 && len(content) <= shownOutput:
			one.Text = content
			say("file " + f.Path + ":\n" + content)
		default:
			one.Note = "not shown: it is binary or long"
			size := f.Size
			result.Content = append(result.Content, &sdk.ResourceLink{URI: fileURI(at), Name: f.Path, Size: &size})
		}
		out.Files = append(out.Files, one)
	}
	if res.OutputsError != "" || res.OutputsTruncated {
		say("files: " + cmp.Or(res.OutputsError, "there are more than are here"))
	}
	if len(in.Outputs) > 0 && len(res.Outputs) == 0 && res.OutputsError == "" {
		say("files: it has made none that match")
	}
	return result, out, nil
}

// ending says in one line how a command ended.
func ending(r *commandResult) string {
	text := ""
	switch {
	case r.ExitCode != nil:
		text = fmt.Sprintf("exit code %d", *r.ExitCode)
	case r.Verdict == "signaled":
		text = "ended by " + r.Signal
	default:
		text = "killed: " + r.Verdict
		if r.Limit != "" {
			text += ", the limit is " + r.Limit
		}
	}
	return fmt.Sprintf("%s after %.2f s", text, r.Seconds)
}

// progressInterval is how often a client that has asked for it hears of a command.
const progressInterval = time.Second

// reportProgress tells the client regularly how long its call has taken, and what say returns. The
// caller calls stop.
func (b *box) reportProgress(ctx context.Context, say func() string) (stop func()) {
	token := b.request.Params.GetProgressToken()
	if token == nil {
		return func() {}
	}
	began, ended := time.Now(), make(chan struct{})
	var reporting sync.WaitGroup
	reporting.Go(func() {
		tick := time.NewTicker(progressInterval)
		defer tick.Stop()
		for {
			select {
			case <-ended:
				return
			case <-ctx.Done():
				return
			case <-tick.C:
				// A client that is gone ends ctx.
				_ = b.request.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{ProgressToken: token, Progress: time.Since(began).Seconds(), Message: say()})
			}
		}
	})
	return func() { close(ended); reporting.Wait() }
}

// stream is an output of a command. It keeps what is shown, and writes an output that is longer into
// a file in the box, while the command runs.
type stream struct {
	b    *box
	ctx  context.Context
	file string

	mu     sync.Mutex
	shown  headtail.Buffer
	begin  []byte // until it is longer than shownOutput
	bytes  int64
	pipe   *io.PipeWriter // to the file; nil: there is none
	stored chan error     // gets the outcome of writing it
}

func newStream(ctx context.Context, b *box, file string) *stream {
	return &stream{b: b, ctx: ctx, file: file, shown: headtail.Buffer{Limit: shownOutput}}
}

func (s *stream) written() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bytes
}

// Write never fails: a file that cannot be written does not end the command.
func (s *stream) Write(p []byte) (int, error) {
	s.mu.Lock()
	s.shown.Write(p)
	s.bytes += int64(len(p))
	var begin []byte
	pipe := s.pipe
	switch {
	case pipe != nil:
	case s.bytes <= shownOutput:
		s.begin = append(s.begin, p...)
	default:
		pipe = s.storeLocked()
		begin = s.begin
		s.begin = nil
	}
	s.mu.Unlock()
	if pipe != nil {
		_, _ = pipe.Write(append(begin, p...)) // fails once the file could not be written, which end reports
	}
	return len(p), nil
}

// storeLocked begins to write the file. Only one goroutine writes to a stream.
func (s *stream) storeLocked() *io.PipeWriter {
	r, w := io.Pipe()
	s.pipe, s.stored = w, make(chan error, 1)
	go func() { // joined by end
		_, err := s.b.c.WriteFile(s.ctx, s.b.session.ID, s.file, r, apiWrite)
		if err != nil {
			r.CloseWithError(err) // Write goes on without it
		}
		s.stored <- err
	}()
	return w
}

// end returns what is shown of the whole output.
func (s *stream) end() shownStream {
	s.mu.Lock()
	out := shownStream{Bytes: s.bytes}
	pipe := s.pipe
	text, gap := s.shown.Bytes()
	s.mu.Unlock()
	if pipe != nil {
		pipe.Close()
		if err := <-s.stored; err != nil {
			out.Problem = toolError(err).Error()
		} else {
			out.File = s.file
			s.b.tidyOutputs(s.ctx)
		}
	}
	if gap == nil {
		out.Text, out.NotText = plain(text)
		return out
	}
	where := "and lost: " + out.Problem
	if out.File != "" {
		where = "and in the file " + out.File
	}
	begin, before := plain(text[:gap.Offset])
	end, after := plain(text[gap.Offset:])
	out.Text = fmt.Sprintf("%s\n[… %d bytes from offset %d on are left out %s …]\n%s", begin, gap.Bytes, gap.Offset, where, end)
	out.NotText = before + after
	return out
}

// plain returns b as text in which bytes that are not UTF-8 are written \xNN, and how many there are.
func plain(b []byte) (text string, bad int) {
	var out strings.Builder
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		if r == utf8.RuneError && n == 1 {
			fmt.Fprintf(&out, `\x%02x`, b[0])
			bad++
		} else {
			out.Write(b[:n])
		}
		b = b[n:]
	}
	return out.String(), bad
}

// notText is the part of a heading that explains the bytes of plain.
func notText(bad int) string {
	if bad == 0 {
		return ""
	}
	return fmt.Sprintf(` (%d bytes that are not UTF-8 are written \xNN)`, bad)
}

// keptOutputs is how many files with outputs a box keeps: they take up its memory.
const keptOutputs = 8

// tidyOutputs removes the oldest files with outputs. A failure only costs memory of the box.
func (b *box) tidyOutputs(ctx context.Context) {
	list, err := b.c.ListFiles(ctx, b.session.ID, "/tmp/boxd-output")
	if err != nil {
		return
	}
	files := list.Files
	sortByTime(files)
	for _, f := range files[:max(0, len(files)-keptOutputs)] {
		_ = b.c.RemoveFile(ctx, b.session.ID, f.Path, false)
	}
}
