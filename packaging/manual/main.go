// Command manual writes the manual pages of boxd and its completions for shells into a
// directory, as "make install" places them below PREFIX/share.
//
// It is not part of boxd, so that what turns Markdown into roff is not either.
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

// write makes the files below dir. Of two runs with the same SOURCE_DATE_EPOCH, which
// the package doc asks for the date, they are the same.
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

// pages writes the page of cmd and of the commands below it.
func pages(cmd *cobra.Command, dir string) error {
	cmd.InitDefaultHelpFlag()
	cmd.Long = preformatted(cmd.Long)
	// Brackets in front of a parenthesis are a link in Markdown.
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

// preformatted keeps the lines of a help text that begin with a blank as they are, which
// Markdown would join.
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
