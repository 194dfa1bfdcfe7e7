package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"path"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/oneline"
	"github.com/spf13/cobra"
)

// outputFlags choose files that a command makes, and where they go.
type outputFlags struct {
	outputs   []string
	outputsTo string
}

func (f *outputFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&f.outputs, "outputs", nil, "copy new and changed files to the host that match `GLOB`: '*.png', out or '**/*.csv'; may be repeated")
	cmd.Flags().StringVar(&f.outputsTo, "outputs-to", ".", "`DIR` of the host to copy them to")
}

// check refuses, before the command runs, a directory that is not there.
func (f *outputFlags) check() error {
	if len(f.outputs) == 0 {
		return nil
	}
	if info, err := os.Stat(f.outputsTo); err != nil || !info.IsDir() {
		return &engine.FieldError{Field: "--outputs-to", Value: spec.Quote(f.outputsTo), Rule: "must be a directory: make it first"}
	}
	return nil
}

// saveOutputs writes the files that a command has made below a directory of the host. They come
// from a session: neither a name nor a symlink leads out of the directory. Each failure is told on
// stderr; the error says only that there was one, because the result of the command counts first.
func (a *App) saveOutputs(ctx context.Context, c *client.Client, session, workdir string, f *outputFlags, result *apitypes.ExecResult) (unsaved error) {
	if result.OutputsError != "" {
		a.say("boxd: no outputs: %s", printable(result.OutputsError))
		unsaved = errUnsaved
	}
	if result.OutputsTruncated {
		a.say("boxd: there are more outputs than the %d that were copied: copy them with boxd cp", len(result.Outputs))
	}
	if len(result.Outputs) == 0 {
		return unsaved
	}
	sink, err := openHostSink(f.outputsTo)
	if err != nil {
		a.say("boxd: no outputs: --outputs-to: %s", oneline.Error(err))
		return errUnsaved
	}
	defer sink.close()
	for _, o := range result.Outputs {
		name := cmp.Or(string(o.RawPath), o.Path)
		if err := saveOutput(ctx, c, session, workdir, sink, name, o); err != nil {
			a.say("boxd: output %s: %s", spec.Quote(name), oneline.Error(err))
			unsaved = errUnsaved
		}
	}
	return unsaved
}

var errUnsaved = errors.New("not all outputs were saved")

// saveOutput writes one output, and asks for its content if the answer did not have it.
func saveOutput(ctx context.Context, c *client.Client, session, workdir string, to *hostSink, name string, o apitypes.OutputFile) error {
	var content io.Reader = bytes.NewReader(o.Bytes())
	if o.Omitted {
		r, err := c.ReadFile(ctx, session, path.Join(cmp.Or(workdir, "."), name), 0, 0)
		if err != nil {
			return err
		}
		defer r.Close()
		content = r
	}
	for i, c := range name {
		if c == '/' {
			if err := to.dir(ctx, name[:i], 0o755); err != nil {
				return err
			}
		}
	}
	return to.file(ctx, name, permissions(o.Mode), o.Size, content)
}
