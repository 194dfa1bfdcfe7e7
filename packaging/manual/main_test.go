package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxd/boxd/internal/cli"
	"github.com/spf13/cobra"
)

func TestManual(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1000000000")
	dir := t.TempDir()
	if err := write(dir); err != nil {
		t.Fatal(err)
	}
	read := func(path string) string {
		text, err := os.ReadFile(filepath.Join(dir, path))
		if err != nil {
			t.Error(err)
		}
		return string(text)
	}
	pages := 0
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		page := read("man/man1/" + strings.ReplaceAll(cmd.CommandPath(), " ", "-") + ".1")
		if !strings.Contains(page, "Sep 2001") || !strings.Contains(page, ".SH SYNOPSIS") {
			t.Errorf("%s: %.300s", cmd.CommandPath(), page)
		}
		pages++
		for _, sub := range cmd.Commands() {
			if sub.IsAvailableCommand() {
				walk(sub)
			}
		}
	}
	walk((&cli.App{}).Command())
	if files, err := filepath.Glob(filepath.Join(dir, "man/man1/*")); err != nil || len(files) != pages || pages < 20 {
		t.Errorf("%d pages for %d commands, %v", len(files), pages, err)
	}
	run := read("man/man1/boxd-run.1")
	for _, part := range []string{"\n  124    it ran longer than --timeout\n", "DST[,readonly] (repeatable)", `\fB--memory\fP=512M`} {
		if !strings.Contains(run, part) {
			t.Errorf("boxd-run.1 lacks %q:\n%s", part, run)
		}
	}
	if !strings.Contains(read("fish/vendor_completions.d/boxd.fish"), "complete -c boxd") || !strings.HasPrefix(read("zsh/site-functions/_boxd"), "#compdef boxd") {
		t.Error("completions for fish or zsh are not what they should be")
	}
	if out, err := exec.Command("bash", "-n", filepath.Join(dir, "bash-completion/completions/boxd")).CombinedOutput(); err != nil {
		t.Errorf("completion for bash: %v, %s", err, out)
	}
}
