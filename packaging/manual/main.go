// Command manual writes the manual pages of boxd and its shell completions into a directory, with the
// layout that "make install" wants below PREFIX/share.
//
// It is a command of its own so that boxd does not link the converter from Markdown to roff.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/boxd/boxd/internal/cli"
	"github.com/boxd/boxd/internal/version"
	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: manual DIR")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "manual:", err)
		os.Exit(1)
	}
}

// write creates the files below dir. They depend only on the version and on SOURCE_DATE_EPOCH, which
// package doc uses as the date.
func write(dir string) error {
	app := cli.App{Version: version.Version, Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: io.Discard, LookupEnv: func(string) (string, bool) { return "", false }}
	root := app.Command()
	root.DisableAutoGenTag = true
	for _, c := range []struct {
		path  string
		write func(w io.Writer) error
	}{
		{"bash-completion/completions/boxd", func(w io.Writer) error { return root.GenBashCompletionV2(w, true) }},
		{"zsh/site-functions/_boxd", root.GenZshCompletion},
		{"fish/vendor_completions.d/boxd.fish", func(w io.Writer) error { return root.GenFishCompletion(w, true) }},
	} {
		if err := file(filepath.Join(dir, c.path), c.write); err != nil {
			return err
		}
	}
	return pages(root, filepath.Join(dir, "man/man1"))
}

// pages writes the pages of cmd and its subcommands.
func pages(cmd *cobra.Command, dir string) error {
	cmd.InitDefaultHelpFlag()
	cmd.Long = preformatted(cmd.Long)
	// Markdown takes brackets before a parenthesis as a link.
	cmd.Flags().VisitAll(func(f *pflag.Flag) { f.Usage = strings.ReplaceAll(f.Usage, "[", `\[`) })
	name := strings.ReplaceAll(cmd.CommandPath(), " ", "-")
	header := &doc.GenManHeader{Title: strings.ToUpper(name), Section: "1", Source: "boxd " + version.Version, Manual: "boxd"}
	err := file(filepath.Join(dir, name+".1"), func(w io.Writer) error { return doc.GenMan(cmd, header, w) })
	for _, sub := range cmd.Commands() {
		if err == nil && sub.IsAvailableCommand() {
			err = pages(sub, dir)
		}
	}
	return err
}

// preformatted indents the lines of a help text that begin with a blank, so that Markdown does not
// join them.
func preformatted(text string) string {
	var b strings.Builder
	within := false
	for line := range strings.Lines(text) {
		indented := strings.HasPrefix(line, " ")
		if indented != within {
			b.WriteByte('\n')
		}
		if within = indented; indented {
			b.WriteString("    ")
		}
		b.WriteString(line)
	}
	return b.String()
}

func file(path string, write func(io.Writer) error) error {
	var b bytes.Buffer
	if err := write(&b); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, b.Bytes(), 0o644))
}
