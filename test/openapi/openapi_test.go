package openapi

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/boxd/boxd/internal/testutil"
	"github.com/boxd/boxd/test/daemon"
)

func TestMain(m *testing.M) { testutil.Main(m) }

const document = "../../docs/openapi.json"

// tool returns a command that runs a program of node_modules, which "make setup" fills.
func tool(t *testing.T, dir, script string, args ...string) *exec.Cmd {
	t.Helper()
	node := testutil.RequireProgram(t, "node")
	path, err := filepath.Abs(filepath.Join("node_modules", script))
	if err != nil {
		t.Fatal(err)
	}
	testutil.RequireFile(t, path)
	cmd := exec.CommandContext(t.Context(), node, append([]string{path}, args...)...)
	cmd.Dir = dir
	// Unless told otherwise, redocly reports its use and looks for new versions.
	cmd.Env = append(os.Environ(), "REDOCLY_TELEMETRY=off", "REDOCLY_SUPPRESS_UPDATE_NOTICE=true", "NO_COLOR=1")
	return cmd
}

func run(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(cmd.Args, " "), err, out)
	}
	return string(out)
}

// A foreign linter finds nothing in the document, and finds the mistakes in another one.
func TestLint(t *testing.T) {
	testutil.Long(t)
	doc, err := filepath.Abs(document)
	if err != nil {
		t.Fatal(err)
	}
	const lint = "@redocly/cli/bin/cli.js"
	dir := t.TempDir()
	out, err := tool(t, dir, lint, "lint", "--format=json", doc).Output()
	var found struct {
		Totals   *struct{ Errors, Warnings, Ignored int }
		Problems []any
	}
	if jsonErr := json.Unmarshal(out, &found); jsonErr != nil || err != nil || found.Totals == nil {
		t.Fatalf("%v, %v: %s", err, jsonErr, out)
	}
	if len(found.Problems) > 0 || *found.Totals != struct{ Errors, Warnings, Ignored int }{} {
		t.Errorf("%s", out)
	}
	raw, err := os.ReadFile(doc)
	if err != nil {
		t.Fatal(err)
	}
	broken := filepath.Join(dir, "broken.json")
	raw = bytes.Replace(raw, []byte(`#/components/schemas/Usage"`), []byte(`#/components/schemas/None"`), 1)
	if err := os.WriteFile(broken, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := tool(t, dir, lint, "lint", broken).CombinedOutput(); err == nil {
		t.Errorf("a reference to nothing passes:\n%s", out)
	}
}

// A client generated from the document compiles with the types that session.ts relies on,
// and drives a session of a daemon.
func TestGeneratedClient(t *testing.T) {
	testutil.RequireRoot(t)
	testutil.Long(t)
	doc, err := filepath.Abs(document)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	generator := tool(t, dir, "openapi-typescript/bin/cli.js", doc, "-o", "schema.d.ts")
	modules, err := filepath.Abs("node_modules")
	if err == nil {
		err = os.Symlink(modules, filepath.Join(dir, "node_modules"))
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"session.ts", "tsconfig.json", "package.json"} {
		content, err := os.ReadFile(name)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), content, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	run(t, generator)
	run(t, tool(t, dir, "typescript/bin/tsc", "-p", "."))

	node := testutil.RequireProgram(t, "node")
	script := exec.CommandContext(t.Context(), node, "session.js", "http://"+serve(t))
	script.Dir = dir
	run(t, script)
}

// serve starts a daemon with a TCP listener and returns its address.
func serve(t *testing.T) string {
	t.Helper()
	d, _ := daemon.ForTest(t, daemon.Config{Dir: testutil.ReachableDir(t, ""), Args: []string{"--listen", "127.0.0.1:0"}})
	log, err := os.ReadFile(d.Log())
	if err != nil {
		t.Fatal(err)
	}
	address := regexp.MustCompile(`network=tcp address=(\S+)`).FindSubmatch(log)
	if address == nil {
		t.Fatalf("the daemon does not say where it listens: %s", log)
	}
	return string(address[1])
}

// All packages of npm that tests use are pinned by version and hash, and where they came from is not
// recorded.
func TestLockFile(t *testing.T) {
	for _, dir := range []string{".", "../e2e/testdata/programs", "../mcp", "../reach", "../../ui"} {
		t.Run(filepath.Base(dir), func(t *testing.T) { checkLockFile(t, dir) })
	}
}

func checkLockFile(t *testing.T, dir string) {
	lock, err := os.ReadFile(filepath.Join(dir, "package-lock.json"))
	if err != nil {
		t.Fatal(err)
	}
	if at := regexp.MustCompile(`"resolved"|registry|\.tgz`).Find(lock); at != nil {
		t.Errorf("the lock file says where a package was downloaded (%q): npm with .npmrc of its directory does not", at)
	}
	packages := bytes.Count(lock, []byte(`    "node_modules/`))
	if hashes := bytes.Count(lock, []byte(`"integrity": "sha512-`)); packages == 0 || hashes != packages {
		t.Errorf("%d packages, %d hashes", packages, hashes)
	}
	manifest, err := os.ReadFile(filepath.Join(dir, "package.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`": "([\^~><*x].*)"`).FindAllStringSubmatch(string(manifest), -1) {
		t.Errorf("version %q is not pinned", m[1])
	}
}
