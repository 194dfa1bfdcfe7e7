package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/bench/report"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/relay"
)

const (
	bulkBytes  = 1 << 30
	bulkTarget = 1e9 // bytes per second
	echoTarget = 200 * time.Microsecond
)

// source writes for as long as there is a reader.
var source = []string{"cat", "/dev/zero"}

// streams measures the relay of a managed process.
func (b *bench) streams(ctx context.Context) {
	b.withDaemon(func(s *served) error {
		if err := s.ensure(ctx, "stream"); err != nil {
			return err
		}
		return errors.Join(b.bulk(ctx, s), b.echo(ctx, s))
	})
}

// bulk measures one process and one reader, and for comparison the same process without a
// box, read through a pipe.
func (b *bench) bulk(ctx context.Context, s *served) error {
	const what = "relay, bulk, one process to one reader"
	a, err := s.attach(ctx, "bulk", source)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	defer a.Close()
	cmd := exec.Command(source[0], source[1:]...)
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	samples, err := b.alternate(max(b.n/100, 4),
		timed(func() error { _, err := io.CopyN(struct{ io.Writer }{io.Discard}, pipe, bulkBytes); return err }),
		timed(func() error { return receive(a, bulkBytes) }))
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	bare, relayed := samples[0], samples[1]
	b.rates("relay.bulk", what, report.BytesPerSecond, bulkBytes, relayed, bare, "a pipe", goal{"≥ 1 GB/s", bulkBytes/relayed.p50().Seconds() >= bulkTarget})
	return nil
}

// receive receives n bytes of output, or a little more.
func receive(a *relay.Attachment, n int64) error {
	for n > 0 {
		e, err := a.Recv()
		if err != nil {
			return err
		}
		switch e := e.(type) {
		case relay.Data:
			n -= int64(len(e.Bytes))
		case relay.Gap, relay.Exited:
			return fmt.Errorf("unexpected event %+v", e)
		}
	}
	return nil
}

// echo measures the round trip of a line.
func (b *bench) echo(ctx context.Context, s *served) error {
	const what = "relay, echo round trip"
	a, err := s.attach(ctx, "echo", []string{"cat"})
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	defer a.Close()
	cmd := exec.Command("cat")
	in, ierr := cmd.StdinPipe()
	out, oerr := cmd.StdoutPipe()
	if err := errors.Join(ierr, oerr, cmd.Start()); err != nil {
		return err
	}
	lines := bufio.NewReader(out)
	line := []byte("a line of some forty characters or so..\n")
	samples, err := b.alternate(max(b.n*5, 100),
		timed(func() error {
			_, werr := in.Write(line)
			_, rerr := lines.ReadSlice('\n')
			return errors.Join(werr, rerr)
		}),
		timed(func() error {
			if _, err := a.Write(line); err != nil {
				return err
			}
			return receive(a, int64(len(line)))
		}))
	if err := errors.Join(err, in.Close(), cmd.Wait()); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	b.times("relay.echo", what, samples[1], samples[0], "two pipes", goal{"≤ 0.2 ms", samples[1].p50() <= echoTarget})
	return nil
}

func (s *served) attach(ctx context.Context, id string, argv []string) (*relay.Attachment, error) {
	if _, err := s.client.Start(ctx, "stream", apitypes.ProcessRequest{ID: id, Argv: argv}); err != nil {
		return nil, err
	}
	return s.client.Attach(ctx, "stream", id, client.AttachOptions{Write: true})
}
