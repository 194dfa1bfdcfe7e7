package files_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/files"
)

// Files go into the box, a command works on them, and the result comes out.
func Example() {
	ctx, o := context.Background(), files.Options{}
	_, err := files.Write(ctx, box, o, "in/names", strings.NewReader("carol\nalice\nbob\n"), files.WriteOptions{MakeParents: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	if _, err := engine.Run(ctx, box, engine.Command{Args: []string{"sh", "-c", "sort in/names > sorted"}}); err != nil {
		fmt.Println(err)
		return
	}
	info, err := files.Read(ctx, box, o, "sorted", 0, 0, os.Stdout)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(info.Name, info.Type, info.Size)
	// Output:
	// alice
	// bob
	// carol
	// sorted file 16
}

// A path is absolute, or relative to the workspace or the home directory.
func ExampleList() {
	ctx, o := context.Background(), files.Options{}
	if err := files.Mkdir(ctx, box, o, "/tmp/list/sub", files.MkdirOptions{Parents: true}); err != nil {
		fmt.Println(err)
		return
	}
	if _, err := files.Write(ctx, box, o, "/tmp/list/run.sh", strings.NewReader("true\n"), files.WriteOptions{Mode: 0o755}); err != nil {
		fmt.Println(err)
		return
	}
	if err := files.Symlink(ctx, box, o, "/tmp/list/latest", "run.sh"); err != nil {
		fmt.Println(err)
		return
	}
	list, truncated, err := files.List(ctx, box, o, "/tmp/list", 0)
	for _, f := range list {
		fmt.Printf("%s %s %s %q\n", f.Name, f.Type, f.Mode, f.Target)
	}
	fmt.Println(truncated, err)
	// Output:
	// latest symlink 0777 "run.sh"
	// run.sh file 0755 ""
	// sub dir 0755 ""
	// false <nil>
}

// Append adds to a file; without it the file is replaced as a whole or not at all.
func ExampleWrite_append() {
	ctx, o := context.Background(), files.Options{}
	for _, line := range []string{"first\n", "second\n"} {
		if _, err := files.Write(ctx, box, o, "/tmp/log", strings.NewReader(line), files.WriteOptions{Append: true}); err != nil {
			fmt.Println(err)
			return
		}
	}
	_, err := files.Read(ctx, box, o, "/tmp/log", 0, 0, os.Stdout)
	fmt.Println(err)
	// Output:
	// first
	// second
	// <nil>
}

// Test conditions with errors.Is: those of io/fs, and those of this package.
func Example_errors() {
	ctx, o := context.Background(), files.Options{}
	_, err := files.Stat(ctx, box, o, "/no/such/file")
	fmt.Println(errors.Is(err, fs.ErrNotExist))

	_, err = files.Write(ctx, box, o, "/tmp/big", strings.NewReader("six bytes"), files.WriteOptions{MaxBytes: 5})
	fmt.Println(errors.Is(err, files.ErrTooLarge))

	_, err = files.Write(ctx, box, o, "/usr/bin/true", strings.NewReader(""), files.WriteOptions{})
	fmt.Println(errors.Is(err, files.ErrRefused))
	// Output:
	// true
	// true
	// true
}
