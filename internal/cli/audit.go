package cli

import (
	"errors"
	"fmt"

	"github.com/boxd/boxd/audit"
	"github.com/spf13/cobra"
)

// defaultAudit is where packages have the daemon write its audit log.
const defaultAudit = "/var/lib/boxd/audit.log"

func (a *App) newAudit() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Check the audit log of the daemon",
		Long:  "Check the audit log of the daemon: who asked what, what was decided, and how it ended.",
	}
	cmd.AddCommand(a.newAuditVerify())
	return cmd
}

func (a *App) newAuditVerify() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "verify [FILE] [flags]",
		Short: "Check that nothing was cut out of the audit log or changed in it",
		Long: `Check that nothing was cut out of the audit log or changed in it: each entry holds
the hash of the one before, across rotated files. FILE is that of the newest part
(default ` + defaultAudit + `). What was cut off at the end shows only if the head
that is printed here is compared with one that was kept elsewhere.

Exit status: 0 if the log is whole, 1 if it is not, 125 if it cannot be read.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			path := defaultAudit
			if len(args) == 1 {
				path = args[0]
			}
			return a.auditVerify(path, asJSON)
		},
		DisableFlagsInUseLine: true,
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (a *App) auditVerify(path string, asJSON bool) error {
	report, err := audit.Verify(path)
	broken := errors.Is(err, audit.ErrBroken)
	if err != nil && !broken {
		return err
	}
	if asJSON {
		doc := struct {
			OK    bool   `json:"ok"`
			Error string `json:"error,omitempty"`
			audit.Report
		}{OK: err == nil, Report: report}
		if err != nil {
			doc.Error = oneLine(err)
		}
		if err := writeJSON(a.Stdout, doc); err != nil {
			return err
		}
	}
	if err != nil {
		return &statusError{statusUnwell, err}
	}
	if !asJSON {
		_, err = fmt.Fprintf(a.Stdout, "ok: %d entries in %d files, head %d %s\n", report.Entries, report.Files, report.Head.Seq, report.Head.Hash)
	}
	return err
}
