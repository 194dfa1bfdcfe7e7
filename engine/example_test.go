package engine_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native"
)

// Start an engine, create a box, run one command in it, and remove it. Starting the
// engine needs root; the command itself has no privilege at all.
func Example() {
	ctx := context.Background()
	eng, err := native.Start(ctx, native.Options{InitPath: initPath})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer eng.Close()

	box, err := eng.Create(ctx, engine.Spec{Limits: engine.Limits{Memory: 64 << 20}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer box.Remove(ctx)

	result, err := engine.Run(ctx, box, engine.Command{
		Args:   []string{"sh", "-c", "echo I am user $(id -u) of $(uname -n)"},
		Stdout: os.Stdout,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(result.Verdict, result.ExitCode)
	// Output:
	// I am user 0 of box
	// exited 0
}

// A command reads its input from any io.Reader and writes to any io.Writer. A command
// that fails is a result, not an error.
func ExampleRun() {
	box := newBox(engine.Spec{})
	defer box.Remove(context.Background())

	var stdout, stderr bytes.Buffer
	result, err := engine.Run(context.Background(), box, engine.Command{
		Args:   []string{"grep", "-c", "apple"},
		Stdin:  strings.NewReader("apple\npear\napple pie\n"),
		Stdout: &stdout,
		Stderr: &stderr,
	})
	fmt.Printf("%q %q, %s %d, %v\n", stdout.String(), stderr.String(), result.Verdict, result.ExitCode, err)

	result, err = engine.Run(context.Background(), box, engine.Command{Args: []string{"sh", "-c", "exit 3"}})
	fmt.Println(result.Verdict, result.ExitCode, err)
	// Output:
	// "2\n" "", exited 0, <nil>
	// exited 3 <nil>
}

// Output can be read while the command runs. The pipe's reader sees the end of the
// output when Wait has returned.
func ExampleBox_stream() {
	box := newBox(engine.Spec{})
	defer box.Remove(context.Background())

	output, w := io.Pipe()
	process, err := box.Start(context.Background(), engine.Command{
		Args:   []string{"sh", "-c", "for i in 1 2 3; do echo step $i; sleep 0.01; done"},
		Stdout: w,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	go func() {
		_, err := process.Wait()
		w.CloseWithError(err) // io.EOF if there is no error
	}()
	for lines := bufio.NewScanner(output); lines.Scan(); {
		fmt.Println(lines.Text())
	}
	// Output:
	// step 1
	// step 2
	// step 3
}

// The verdict says why a command ended, and Limit which limit it ran into.
func ExampleVerdict() {
	box := newBox(engine.Spec{Limits: engine.Limits{Memory: 64 << 20, PIDs: 16}})
	defer box.Remove(context.Background())

	for _, cmd := range []engine.Command{
		{Args: []string{"false"}},
		{Args: []string{"sh", "-c", "kill -HUP $$"}},
		{Args: []string{"sleep", "60"}, Timeout: 50 * time.Millisecond},
		{Args: []string{"tail", "/dev/zero"}}, // keeps all of it in memory
		{Args: []string{"sh", "-c", "for i in $(seq 20); do sleep 10 & done"}},
		{Args: []string{"yes"}, Stdout: io.Discard, OutputLimit: 1 << 20},
	} {
		result, err := engine.Run(context.Background(), box, cmd)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("%s %q\n", result.Verdict, result.Limit)
	}
	// Output:
	// exited ""
	// signaled ""
	// timeout "50ms"
	// oom "64 MiB"
	// pids-limit "16"
	// output-limit "1 MiB"
}

// At its timeout a command and all its descendants get SIGTERM. Those that are still
// running after the grace period are killed.
func ExampleCommand_timeout() {
	box := newBox(engine.Spec{})
	defer box.Remove(context.Background())

	result, err := engine.Run(context.Background(), box, engine.Command{
		Args:    []string{"sh", "-c", "trap 'echo saving; exit' TERM; sleep 60 & wait"},
		Stdout:  os.Stdout,
		Timeout: 2 * time.Second,
		Grace:   10 * time.Second,
	})
	fmt.Println(result.Verdict, result.Status(), err)
	// Output:
	// saving
	// timeout 124 <nil>
}

// The receipt counts the command and all its descendants. A figure that the host
// cannot measure is nil.
func ExampleReceipt() {
	box := newBox(engine.Spec{})
	defer box.Remove(context.Background())

	result, err := engine.Run(context.Background(), box, engine.Command{
		Args:   []string{"sh", "-c", "dd if=/dev/zero of=/dev/null bs=20M count=1 status=none; echo done"},
		Stdout: io.Discard,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	r := result.Receipt
	fmt.Println("took time:", r.Wall > 0)
	fmt.Println("at least 20 MiB of memory:", r.MemoryPeak == nil || *r.MemoryPeak >= 20<<20)
	fmt.Println("bytes of output:", *r.StdoutBytes) // never nil for a writer such as io.Discard
	// Output:
	// took time: true
	// at least 20 MiB of memory: true
	// bytes of output: 5
}

// Test for conditions with errors.Is. With errors.As, get the value that breaks a rule.
func Example_errors() {
	ctx := context.Background()
	box := newBox(engine.Spec{})
	defer box.Remove(ctx)

	_, err := engine.Run(ctx, box, engine.Command{Args: []string{"no-such-program"}})
	fmt.Println(errors.Is(err, engine.ErrNotFound))

	_, err = engine.Run(ctx, box, engine.Command{Args: []string{"true"}, Dir: "/no/such/dir"})
	fmt.Println(errors.Is(err, engine.ErrNoDir))

	_, err = eng.Create(ctx, engine.Spec{Limits: engine.Limits{Memory: 1 << 20}})
	var field *engine.FieldError
	fmt.Println(errors.Is(err, engine.ErrInvalid), errors.As(err, &field))
	fmt.Println(field.Field, field.Value)
	// Output:
	// true
	// true
	// true true
	// memory 1 MiB
}

// Directories of the host are attached to a box while it runs, and detached again.
func ExampleBox_update() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "boxd-example-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	if err := os.WriteFile(filepath.Join(dir, "greeting"), []byte("hello from the host\n"), 0o644); err != nil {
		fmt.Println(err)
		return
	}
	box := newBox(engine.Spec{})
	defer box.Remove(ctx)

	look := engine.Command{Args: []string{"sh", "-c", "cat /data/greeting 2>/dev/null || echo nothing there"}, Stdout: os.Stdout}
	attach := engine.Change{Attach: []engine.Mount{{Source: dir, Target: "/data", ReadOnly: true}}}
	detach := engine.Change{Detach: []string{"/data"}}
	for _, change := range []engine.Change{attach, detach} {
		if err := box.Update(ctx, change); err != nil {
			fmt.Println(err)
			return
		}
		if _, err := engine.Run(ctx, box, look); err != nil {
			fmt.Println(err)
			return
		}
	}
	// Output:
	// hello from the host
	// nothing there
}

// A managed process keeps its output in the box. A client reads it from any offset.
func ExampleLiveBox() {
	ctx := context.Background()
	box, err := svc.Create(ctx, engine.Spec{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer box.Remove(ctx)

	server, err := box.Launch(ctx, engine.Managed{Key: "adder", Args: []string{"sh", "-c", "while read a b; do echo $((a + b)); done"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	stdio := server.Stdio()
	if err := stdio.Stdin.Write(ctx, 0, []byte("1 2\n30 12\n")); err != nil {
		fmt.Println(err)
		return
	}
	if err := stdio.Stdin.Close(ctx); err != nil {
		fmt.Println(err)
		return
	}
	<-server.Done()

	output := make([]byte, 100)
	n, at, err := stdio.Stdout.ReadAt(ctx, output, 0)
	fmt.Printf("%q from offset %d, %v\n", output[:n], at, err)
	fmt.Println(server.Result().Verdict, server.Result().ExitCode)
	// Output:
	// "3\n42\n" from offset 0, <nil>
	// exited 0
}

// A box of a service outlives the program that created it. The next program adopts the
// box, finds the managed process, and continues to read where the first one stopped.
func ExampleService() {
	ctx := context.Background()
	first, err := native.Connect(ctx, native.ServiceOptions{Socket: socket})
	if err != nil {
		fmt.Println(err)
		return
	}
	box, err := first.Create(ctx, engine.Spec{ID: "agent-7"})
	if err != nil {
		fmt.Println(err)
		return
	}
	process, err := box.Launch(ctx, engine.Managed{Key: "job", Args: []string{"sh", "-c", "echo part one; read go; echo part two"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	buf := make([]byte, 100)
	n, at, err := process.Stdio().Stdout.ReadAt(ctx, buf, 0)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%s", buf[:n])
	next := at + int64(n)
	first.Close() // or the program crashes: box and process keep running

	second, err := native.Connect(ctx, native.ServiceOptions{Socket: socket})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer second.Close()
	box, err = second.Adopt(ctx, "agent-7", engine.Spec{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer box.Remove(ctx)
	process = box.Managed()[0]
	stdin := process.Stdio().Stdin
	if err := stdin.Write(ctx, stdin.Accepted(), []byte("go\n")); err != nil {
		fmt.Println(err)
		return
	}
	n, _, err = process.Stdio().Stdout.ReadAt(ctx, buf, next)
	fmt.Printf("%s", buf[:n])
	<-process.Done()
	fmt.Println(process.Key(), process.Result().Verdict, err)
	// Output:
	// part one
	// part two
	// job exited <nil>
}
