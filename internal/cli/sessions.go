package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/spf13/cobra"
)

func (a *App) newSessions() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "sessions",
		Short: "List, show, change and remove sessions",
		Long: `List, show, change and remove sessions of the daemon.

A session is a named box with a workspace. boxd exec and boxd start create it.`,
	}
	cmd.AddCommand(a.newSessionsList(), a.newSessionsShow(), a.newSessionsLabel(), a.newSessionsRename(), a.newSessionsSet(), a.newSessionsSensitive(), a.newSessionsRemove())
	return cmd
}

func (a *App) newSessionsList() *cobra.Command {
	var f remoteFlags
	var labels []string
	cmd := &cobra.Command{
		Use:     "ls [flags]",
		Aliases: []string{"list"},
		Short:   "List sessions",
		Args:    exactly(),
		RunE: func(*cobra.Command, []string) error {
			return a.remote(&f, func(ctx context.Context, c *client.Client) error {
				list, err := c.Sessions(ctx, labels...)
				if err != nil {
					return err
				}
				doc := apitypes.SessionList{Sessions: orEmpty(list)}
				return printList(a, &f.formatFlags, doc, list, func(s apitypes.Session) string { return s.ID }, func(out screen) error {
					return writeSessions(out, list, time.Now())
				})
			})
		},
		Example: `  boxd sessions ls
  boxd sessions ls -l team=vision -l owner
  boxd sessions ls --format '{{.id}}\t{{.memory}}'
  boxd sessions rm $(boxd sessions ls -q)`,
	}
	registerLabelFilter(cmd, &labels)
	f.registerQuiet(cmd, "the ids")
	f.registerFormat(cmd)
	f.register(cmd)
	return cmd
}

// orEmpty keeps an empty list from becoming null in JSON.
func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

func writeSessions(w screen, list []apitypes.Session, now time.Time) error {
	t := newTable(w, "SESSION", "TENANT", "STATE", "PROFILE", "ENGINE", "IMAGE", "PROCESSES", "EXECS", "AGE", "IDLE", "ENDS IN", "SENSITIVE")
	for _, s := range list {
		ends := ""
		if s.ExpiresAt != nil {
			ends = short(s.ExpiresAt.Sub(now))
		}
		t.row(s.ID, s.Tenant, stateText(s), s.Profile, engineText(s), shortImage(s), fmt.Sprint(s.Processes), fmt.Sprint(s.Execs), ago(now, s.CreatedAt), ago(now, s.LastUsedAt), ends, yes(s.Sensitive))
	}
	return t.flush()
}

// stateText is the state of a session; a paused one says so.
func stateText(s apitypes.Session) string {
	if s.PausedAt != nil {
		return "paused"
	}
	return s.State
}

// engineText is what built the box of a session for a list: with its wall, unless that is the usual one.
func engineText(s apitypes.Session) string {
	if s.Isolation == "" || s.Isolation == spec.IsolationNamespaces {
		return s.Engine
	}
	return s.Engine + "/" + s.Isolation
}

// shortImage is the image of a session for a list: without the registry and the directory of official images.
func shortImage(s apitypes.Session) string {
	return strings.TrimPrefix(strings.TrimPrefix(s.Image, "docker.io/"), "library/")
}

func (a *App) newSessionsShow() *cobra.Command {
	var f remoteFlags
	cmd := &cobra.Command{
		Use:   "show SESSION [flags]",
		Short: "Show one session",
		Long:  "Show one session. Showing it does not count as use.",
		Args:  exactly("SESSION"),
		RunE: func(_ *cobra.Command, args []string) error {
			return a.remote(&f, func(ctx context.Context, c *client.Client) error {
				s, err := c.Session(ctx, args[0])
				if err != nil {
					return err
				}
				return a.printOne(&f.formatFlags, s, func(out screen) error { return writeSession(out, s) })
			})
		},
		ValidArgsFunction: a.completeNames(&f, listSessions),
	}
	f.registerFormat(cmd)
	f.register(cmd)
	return cmd
}

func writeSession(w screen, s apitypes.Session) error {
	t := newTable(w, "session", s.ID)
	if s.Name != "" {
		t.row("name", s.Name)
	}
	t.row("tenant", s.Tenant)
	t.row("state", s.State+reason(s.Reason))
	if s.PausedAt != nil {
		t.row("paused", "since "+s.PausedAt.Local().Format(time.DateTime)+map[bool]string{true: "; use resumes it", false: ""}[s.AutoResume])
	}
	t.row("box", s.Box)
	if s.Engine != "" {
		t.row("engine", s.Engine+reason(s.EngineReason))
		t.row("isolation", s.Isolation)
	}
	if s.Degraded != "" {
		t.row("degraded", s.Degraded)
	}
	t.row("profile", s.Profile)
	for _, key := range slices.Sorted(maps.Keys(s.Labels)) {
		t.row("label", key+"="+s.Labels[key])
	}
	t.row("image", s.Image)
	if s.ImageDigest != "" {
		t.row("digest", s.ImageDigest)
	}
	t.row("memory", limitText(int64(s.Memory), spec.FormatSize))
	t.row("cpus", limitText(s.CPUs, func(n float64) string { return fmt.Sprint(n) }))
	t.row("pids", limitText(s.PIDs, plainCount))
	t.row("network", networkText(s))
	for _, p := range s.Published {
		text := fmt.Sprintf("%s leads to port %d", publishedText(p), p.Port)
		if p.Reason != "" {
			text = fmt.Sprintf("port %d: %s", p.Port, publishedText(p))
		}
		t.row("published", text)
	}
	if s.Sensitive != nil {
		t.row("sensitive", sensitiveText(s.Sensitive))
	}
	t.row("root", map[bool]string{true: "writable", false: "read-only"}[s.WritableRoot])
	t.row("workspace", workspaceText(s))
	if s.Unenforced != "" {
		t.row("not enforced", s.Unenforced)
	}
	for _, warning := range s.Warnings {
		t.row("warning", warning)
	}
	for _, m := range s.Mounts {
		t.row("mount", m.Source+" at "+m.Target+map[bool]string{true: " (ro)", false: " (rw)"}[m.ReadOnly])
	}
	for _, v := range s.Volumes {
		t.row("volume", v.Name+" at "+v.Target+map[bool]string{true: " (ro)", false: " (rw)"}[v.ReadOnly])
	}
	t.row("timeout", s.Timeout.D().String()+", at most "+s.TimeoutCap.D().String())
	t.row("idle ttl", map[bool]string{true: "none, persistent", false: s.IdleTTL.D().String()}[s.Persistent])
	if s.MaxLifetime > 0 {
		t.row("lifetime", s.MaxLifetime.D().String())
	}
	if s.Retain != "" && s.Retain != spec.None {
		t.row("retain", s.Retain)
	}
	t.row("created", s.CreatedAt.Local().Format(time.DateTime))
	t.row("last used", s.LastUsedAt.Local().Format(time.DateTime))
	if s.ExpiresAt != nil {
		t.row("ends", s.ExpiresAt.Local().Format(time.DateTime))
	}
	t.row("running", counted(s.Execs, "command", "commands")+", "+counted(s.Processes, "process", "processes"))
	return t.flush()
}

// yes marks sensitive things in lists.
func yes(s *apitypes.Sensitive) string {
	if s == nil {
		return ""
	}
	return "yes"
}

func sensitiveText(s *apitypes.Sensitive) string {
	return "since " + s.Since.Local().Format(time.DateTime) + ": " + s.Reason
}

func (a *App) newSessionsSensitive() *cobra.Command {
	var f remoteFlags
	cmd := &cobra.Command{
		Use:   "sensitive SESSION [flags]",
		Short: "Mark a session as holding sensitive data, for good",
		Long: `Mark a session as holding sensitive data. From then on it has no network, and what it can
write to becomes sensitive as well: volumes, directories of the host, sessions that get copies
of its files. Only removing the session with its workspace ends that.`,
		Args: exactly("SESSION"),
		RunE: func(_ *cobra.Command, args []string) error {
			return a.remote(&f, func(ctx context.Context, c *client.Client) error {
				on := true
				s, err := c.Update(ctx, args[0], apitypes.SessionUpdate{LiveWishes: apitypes.LiveWishes{Sensitive: &on}})
				if err == nil && f.json {
					err = writeJSON(a.Stdout, s)
				}
				return err
			})
		},
		ValidArgsFunction: a.completeNames(&f, listSessions),
	}
	f.register(cmd)
	return cmd
}

// workspaceText names the mode and the directory of the workspace, and its target and its limit
// if they are not the defaults.
func workspaceText(s apitypes.Session) string {
	text := strings.TrimSpace(s.WorkspaceMode + " " + s.Workspace)
	if s.WorkspaceTarget != engine.WorkspaceTarget && s.WorkspaceTarget != "" {
		text += " at " + s.WorkspaceTarget
	}
	if s.WorkspaceSize > 0 {
		text += ", at most " + spec.FormatSize(int64(s.WorkspaceSize))
	}
	return text
}

func reason(text string) string {
	if text == "" {
		return ""
	}
	return ": " + text
}

func (a *App) newSessionsRemove() *cobra.Command {
	var f remoteFlags
	cmd := &cobra.Command{
		Use:     "rm SESSION... [flags]",
		Aliases: []string{"remove"},
		Short:   "Remove sessions and everything that runs in them",
		Long: `Remove sessions and kill everything that runs in them. A workspace that boxd created is
deleted; a directory of the host that served as workspace is left as it is.`,
		Args: exactly("SESSION..."),
		RunE: func(_ *cobra.Command, args []string) error {
			return a.remote(&f, func(ctx context.Context, c *client.Client) error {
				for _, id := range args {
					if err := c.Remove(ctx, id); err != nil {
						return err // it names the session
					}
					if f.json {
						if err := writeJSON(a.Stdout, map[string]string{"removed": id}); err != nil {
							return err
						}
					}
				}
				return nil
			})
		},
		ValidArgsFunction: a.completeNames(&f, listSessions),
	}
	f.register(cmd)
	return cmd
}
