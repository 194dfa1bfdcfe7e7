package e2e

import (
	"testing"
)

func TestLabels(t *testing.T) {
	d := startDaemon(t)
	d.says(0, "", "exec", "a", "--label", "team=vision", "--label", "owner=ada", "--name", "Ada's", "--", "true")
	d.says(0, "", "exec", "b", "--label", "team=robots", "--", "true")
	d.says(0, "a\n", "sessions", "ls", "-q", "-l", "team=vision")
	d.says(0, "a\nb\n", "sessions", "ls", "-q", "--label", "team")
	d.says(0, "", "sessions", "ls", "-q", "-l", "team=vision", "-l", "owner=eve")
	d.says(0, "Ada's ada\n", "sessions", "ls", "-l", "owner", "--format", "{{.name}} {{.labels.owner}}")

	d.says(0, "", "sessions", "label", "b", "owner=eve", "team-")
	d.says(0, "", "sessions", "rename", "b", "Eve's")
	d.says(0, "Eve's map[owner:eve]\n", "sessions", "show", "b", "--format", "{{.name}} {{.labels}}")
	d.wantRefused(125, d.run("sessions", "label", "b", "owner"), "LABEL", "KEY=VALUE")
	d.wantRefused(125, d.run("sessions", "label", "b"), "LABEL is missing")
	d.wantRefused(125, d.run("exec", "b", "--label", "bad key=x", "--", "true"), "--label")
	// The session is there, with another label.
	d.wantRefused(125, d.run("exec", "b", "--label", "owner=ada", "--", "true"), "labels.owner")

	d.says(0, "", "start", "a", "--id", "p", "--process-label", "role=web", "--", "sleep", "3600")
	d.says(0, "", "start", "a", "--id", "q", "--", "sleep", "3600")
	d.says(0, "p\n", "ps", "a", "-q", "-l", "role=web")

	d.kill()
	d.start()
	d.says(0, "b\n", "sessions", "ls", "-q", "-l", "owner=eve")
	d.says(0, "p\n", "ps", "a", "-q", "-l", "role=web")
}
