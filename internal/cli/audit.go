package cli

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/internal/oneline"
	"github.com/spf13/cobra"
)

// defaultAudit is where the daemon of a distribution package writes its audit log.
const defaultAudit = "/var/lib/boxd/audit.log"

func (a *App) newAudit() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Check the audit log of the daemon",
		Long:  "Check the daemon's audit log: who requested what, the decision, and the outcome.",
	}
	cmd.AddCommand(a.newAuditVerify())
	return cmd
}

func (a *App) newAuditVerify() *cobra.Command {
	var asJSON bool
	var head audit.Head
	cmd := &cobra.Command{
		Use:   "verify [FILE] [flags]",
		Short: "Check that no entry of the audit log was removed or changed",
		Long: `Check that no entry of the audit log was removed or changed. Each entry contains the
hash of the entry before it, also across rotated files. FILE is the newest file
(default ` + defaultAudit + `).

Entries removed from the end, or a log that was rewritten as a whole, are detected only
with --head: an earlier head of the log, which this command and boxd status --json
print, and which you stored elsewhere.

Exit status: 0 if the log is intact, 1 if it is not, 125 if it cannot be read.`,
		Args: exactly("[FILE]"),
		RunE: func(_ *cobra.Command, args []string) error {
			path := defaultAudit
			if len(args) == 1 {
				path = args[0]
			}
			return a.auditVerify(path, head, asJSON)
		},
		Example: `  boxd audit verify
  boxd audit verify --head 5120:4be9... /var/lib/boxd/audit.log`,
		DisableFlagsInUseLine: true,
	}
	cmd.Flags().Var(headValue(&head), "head", "check that the log still contains this earlier head, `SEQ:HASH`")
	completeFlag(cmd, "head")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// headValue reads SEQ:HASH.
func headValue(dst *audit.Head) *textValue {
	return &textValue{"", func(s string) error {
		seq, hash, ok := strings.Cut(s, ":")
		n, err := strconv.ParseUint(seq, 10, 64)
		if raw, herr := hex.DecodeString(hash); !ok || err != nil || herr != nil || len(raw) != sha256.Size {
			return errors.New("must be SEQ:HASH, a number and 64 hexadecimal digits")
		}
		*dst = audit.Head{Seq: n, Hash: hash}
		return nil
	}}
}

func (a *App) auditVerify(path string, head audit.Head, asJSON bool) error {
	report, err := audit.Verify(path, head)
	broken := errors.Is(err, audit.ErrBroken)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: the audit log is for root and the daemon's user: run this with sudo", err)
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: name the file that the daemon writes, audit.log in its state directory or the setting audit.file: boxd audit verify FILE", err)
	case err != nil && !broken:
		return err
	}
	if asJSON {
		doc := struct {
			OK    bool   `json:"ok"`
			Error string `json:"error,omitempty"`
			audit.Report
		}{OK: err == nil, Report: report}
		if err != nil {
			doc.Error = oneline.Error(err)
		}
		if err := writeJSON(a.Stdout, doc); err != nil {
			return err
		}
	}
	if err != nil {
		return &statusError{statusUnwell, err}
	}
	if asJSON {
		return nil
	}
	for _, torn := range report.Torn {
		fmt.Fprintf(a.Stdout, "left by a crash: %s line %d, an incomplete entry of %d bytes\n", torn.File, torn.Line, torn.Bytes)
	}
	if report.Unfinished > 0 {
		fmt.Fprintf(a.Stdout, "left by a crash, or being written: an incomplete entry of %d bytes at the end\n", report.Unfinished)
	}
	_, err = fmt.Fprintf(a.Stdout, "ok: %d entries in %d files, head %d:%s\n", report.Entries, report.Files, report.Head.Seq, report.Head.Hash)
	return err
}
