package client_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/relay"
)

// A session is made with its first command, keeps its files between commands, and
// goes when it is removed or has not been used for a while.
func Example() {
	ctx := context.Background()
	c, err := client.New(client.Options{Socket: socket})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()

	memory := apitypes.Size(64 << 20)
	for _, shell := range []string{"echo 6 times 7 > job", "sed 's/.*/& is 42/' job", "tail /dev/zero"} {
		result, err := c.Exec(ctx, "demo", apitypes.ExecRequest{
			Shell:   shell,
			Session: &apitypes.SessionSpec{LiveWishes: apitypes.LiveWishes{Memory: &memory}},
		})
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("%s%s %d\n", result.Stdout, result.Verdict, result.Status)
	}
	if err := c.Remove(ctx, "demo"); err != nil {
		fmt.Println(err)
	}
	// Output:
	// exited 0
	// 6 times 7 is 42
	// exited 0
	// oom 137
}

// Code runs in a language of the session's profile, with other files beside it.
func ExampleClient_Code() {
	ctx, c := context.Background(), connect()
	defer c.Close()
	defer c.Remove(ctx, "code")

	result, err := c.Code(ctx, "code", apitypes.CodeRequest{
		Language: "python",
		Code:     "import sys, words\nprint(words.greeting, sys.argv[1])",
		Files:    []apitypes.CodeFile{{Path: "words.py", Content: "greeting = 'hello'"}},
		Args:     []string{"world"},
		Session:  &apitypes.SessionSpec{Profile: "execution"},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%s%s %d\n", result.Stdout, result.Verdict, result.Status)
	// Output:
	// hello world
	// exited 0
}

// Output arrives while the command runs. A non-zero exit status is not an error.
func ExampleClient_ExecStream() {
	ctx, c := context.Background(), connect()
	defer c.Close()
	defer c.Remove(ctx, "stream")

	result, err := c.ExecStream(ctx, "stream", apitypes.ExecRequest{
		Argv:    []string{"sh", "-c", "echo one; sleep 0.05; echo two; exit 3"},
		Session: &apitypes.SessionSpec{},
	}, os.Stdout, os.Stderr)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(result.Verdict, *result.ExitCode)
	// Output:
	// one
	// two
	// exited 3
}

// Ensure makes a session, or returns the one that is there if it is as asked.
func ExampleClient_Ensure() {
	ctx, c := context.Background(), connect()
	defer c.Close()
	defer c.Remove(ctx, "ensured")

	small, large := apitypes.Size(64<<20), apitypes.Size(128<<20)
	for _, memory := range []*apitypes.Size{&small, &small, &large} {
		s, err := c.Ensure(ctx, apitypes.SessionRequest{ID: "ensured", SessionSpec: apitypes.SessionSpec{LiveWishes: apitypes.LiveWishes{Memory: memory}}})
		if client.IsCode(err, apitypes.CodeSessionConflict) {
			fmt.Println("it is there, and differs")
			continue
		}
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(s.State, s.Memory, s.Created)
	}
	// Output:
	// running 64 MiB true
	// running 64 MiB false
	// it is there, and differs
}

// A managed process runs until it ends or is stopped, with or without a client. A later
// attachment continues at any offset. The client's ID tells the daemon that the new
// connection replaces the old one, so that it may be the writer at once.
func ExampleClient_Attach() {
	ctx, c := context.Background(), connect()
	defer c.Close()
	defer c.Remove(ctx, "managed")

	_, err := c.Start(ctx, "managed", apitypes.ProcessRequest{
		ID: "shout", Argv: []string{"sh", "-c", "while read line; do echo $line!; done"}, Session: &apitypes.SessionSpec{},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	id := rand.Text()
	var since relay.Since // the oldest byte that is kept
	for _, line := range []string{"hello\n", "still there\n"} {
		a, err := c.Attach(ctx, "managed", "shout", client.AttachOptions{Write: true, ClientID: id, Since: since})
		if err != nil {
			fmt.Println(err)
			return
		}
		if _, err := io.WriteString(a, line); err != nil {
			fmt.Println(err)
			return
		}
		for done := false; !done; {
			event, err := a.Recv()
			if err != nil {
				fmt.Println(err)
				return
			}
			if data, ok := event.(relay.Data); ok {
				fmt.Printf("offset %d: %s", data.Offset, data.Bytes)
				since.Stdout = relay.Position{Kind: relay.At, Offset: data.Offset + int64(len(data.Bytes))}
				done = true
			}
		}
		a.Close() // the process keeps running
	}
	// Output:
	// offset 0: hello!
	// offset 7: still there!
}

// The output of a managed process is kept, and can be read without attaching.
func ExampleClient_Logs() {
	ctx, c := context.Background(), connect()
	defer c.Close()
	defer c.Remove(ctx, "logs")

	_, err := c.Start(ctx, "logs", apitypes.ProcessRequest{ID: "count", Shell: "seq 1000", Session: &apitypes.SessionSpec{}})
	if err != nil {
		fmt.Println(err)
		return
	}
	tail := int64(2)
	for _, o := range []client.LogOptions{
		{Follow: true}, // everything, until the process ends
		{Tail: &tail},
		{Offset: 3888, Limit: 4},
	} {
		logs, err := c.Logs(ctx, "logs", "count", o)
		if err != nil {
			fmt.Println(err)
			return
		}
		text, err := io.ReadAll(logs)
		logs.Close()
		fmt.Println(logs.Offset, len(text), strings.Fields(string(text))[0], err)
	}
	// Output:
	// 0 3893 1 <nil>
	// 3884 9 999 <nil>
	// 3888 4 1000 <nil>
}

// Files of a session are written and read by the box's user, in the box.
func ExampleClient_WriteFile() {
	ctx, c := context.Background(), connect()
	defer c.Close()
	if _, err := c.Ensure(ctx, apitypes.SessionRequest{ID: "files"}); err != nil {
		fmt.Println(err)
		return
	}
	defer c.Remove(ctx, "files")

	info, err := c.WriteFile(ctx, "files", "src/main.py", strings.NewReader("print(6 * 7)\n"), client.WriteOptions{Parents: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(info.Name, info.Size, info.Mode)
	body, err := c.ReadFile(ctx, "files", "src/main.py", 6, 5) // offset, length
	if err != nil {
		fmt.Println(err)
		return
	}
	defer body.Close()
	part, err := io.ReadAll(body)
	fmt.Printf("%s, %v\n", part, err)
	// Output:
	// main.py 13 0644
	// 6 * 7, <nil>
}

// Every error of the daemon has a code. Its text is for people.
func ExampleIsCode() {
	ctx, c := context.Background(), connect()
	defer c.Close()

	_, err := c.Exec(ctx, "unknown", apitypes.ExecRequest{Argv: []string{"true"}})
	fmt.Println(client.IsCode(err, apitypes.CodeSessionNotFound))

	var e *client.Error
	fmt.Println(errors.As(err, &e), e.Status)
	// Output:
	// true
	// true 404
}

// Events reports what happens to sessions and processes from now on.
func ExampleClient_Events() {
	ctx, c := context.Background(), connect()
	defer c.Close()
	events, err := c.Events(ctx, "")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer events.Close()
	if _, err := c.Ensure(ctx, apitypes.SessionRequest{ID: "watched"}); err != nil {
		fmt.Println(err)
		return
	}
	if err := c.Remove(ctx, "watched"); err != nil {
		fmt.Println(err)
		return
	}
	for kind := ""; kind != "removed"; {
		event, err := events.Next()
		if err != nil { // after a *MissedError the next call continues
			fmt.Println(err)
			return
		}
		if kind = event.Type; event.Session == "watched" && kind != "state" {
			fmt.Println(kind)
		}
	}
	// Output:
	// created
	// removed
}

// connect returns a client of the daemon, as Example does.
func connect() *client.Client {
	c, err := client.New(client.Options{Socket: socket})
	if err != nil {
		panic(err)
	}
	return c
}
