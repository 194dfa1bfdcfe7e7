package reach

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxd/boxd/internal/testutil"
	"github.com/boxd/boxd/test/daemon"
)

const (
	clientsDocument = "docs/clients.md"
	operatorToken   = "oooooooooooooooooooooooo"
)

// nodeTool returns a command that runs a program of the packages of npm that test/openapi has, which are those
// of clients/typescript.
func nodeTool(t *testing.T, dir, program string, args ...string) *exec.Cmd {
	t.Helper()
	node := testutil.RequireProgram(t, "node")
	path, err := filepath.Abs("../openapi/node_modules/" + program)
	if err != nil {
		t.Fatal(err)
	}
	testutil.RequireFile(t, path)
	cmd := exec.CommandContext(t.Context(), node, append([]string{path}, args...)...)
	cmd.Dir = dir
	return cmd
}

// copyOf returns a copy of the directory of a client, without what npm and builds leave there.
func copyOf(t *testing.T, name string) string {
	t.Helper()
	from, to := filepath.Join("../../clients", name), filepath.Join(t.TempDir(), name)
	err := filepath.WalkDir(from, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		switch {
		case e.IsDir() && (e.Name() == "node_modules" || e.Name() == "dist" || e.Name() == "__pycache__"):
			return filepath.SkipDir
		case e.IsDir():
			return os.MkdirAll(filepath.Join(to, rel), 0o755)
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, rel), content, 0o644)
	})
	if err != nil {
		t.Fatal(err)
	}
	return to
}

func sameFile(t *testing.T, what, got, want, command string) {
	t.Helper()
	a, err := os.ReadFile(got)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(want)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(a, b) {
		t.Errorf("%s is not what docs/openapi.json says: %s", what, command)
	}
}

// daemonFor starts a daemon with a TCP listener and a token.
func daemonFor(t *testing.T) (d *daemon.Daemon, url string) {
	t.Helper()
	testutil.RequireRoot(t)
	dir := testutil.ReachableDir(t, "")
	write(t, dir, map[string]string{"tokens": operatorToken + " default operator\n"})
	d, _ = daemon.ForTest(t, daemon.Config{Dir: dir, Args: []string{"--listen", "127.0.0.1:" + freePort(t), "--tokens-file", filepath.Join(dir, "tokens")}})
	return d, "http://" + addressOf(t, d)
}

// shows fails the test if a document does not show the end of a program, which begins with a line.
func shows(t *testing.T, document, language, program, from string) {
	t.Helper()
	source, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	_, part, found := strings.Cut(string(source), from)
	if !found || code(t, document, language)[0] != from+part {
		t.Errorf("the document does not show %s from %q on", program, from)
	}
}

// The Python client is what its generator makes of the document, can be installed without a network (in the long form), and
// its example does what docs/clients.md says, on the socket and by TCP.
func TestPythonClient(t *testing.T) {
	t.Parallel()
	python := "/usr/bin/python3" // that of the distribution, which has pip
	testutil.RequireFile(t, python)
	dir := copyOf(t, "python")
	fresh := filepath.Join(t.TempDir(), "generated.py")
	output(t, exec.Command(python, "../../clients/python/generate.py", fresh))
	sameFile(t, "clients/python/boxd_client/generated.py", fresh, filepath.Join(dir, "boxd_client/generated.py"), "python3 clients/python/generate.py")

	installed := dir
	if testutil.Full() {
		installed = t.TempDir()
		output(t, exec.Command(python, "-m", "pip", "-q", "install", "--no-build-isolation", "--no-deps", "--no-index", "--disable-pip-version-check", "--root-user-action=ignore", "--target", installed, dir))
	}
	text := section(t, clientsDocument, "Python")
	example := filepath.Join(dir, "examples/session.py")
	shows(t, text, "python", example, "session = boxd.ensure_session(")
	d, url := daemonFor(t)
	for _, where := range [][]string{{d.Socket()}, {url, operatorToken}} {
		cmd := exec.CommandContext(t.Context(), python, append([]string{example}, where...)...)
		cmd.Env = append(os.Environ(), "PYTHONPATH="+installed)
		wants(t, output(t, cmd), code(t, text, "")[0])
	}
	check := exec.CommandContext(t.Context(), python, "testdata/client.py", url, operatorToken)
	check.Env = append(os.Environ(), "PYTHONPATH="+installed)
	output(t, check)
}

// The TypeScript client is what its generator makes of the document, compiles, and its example does what
// docs/clients.md says.
func TestTypeScriptClient(t *testing.T) {
	t.Parallel()
	dir := copyOf(t, "typescript")
	document, err := filepath.Abs("../../docs/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	fresh := filepath.Join(t.TempDir(), "schema.ts")
	output(t, nodeTool(t, dir, "openapi-typescript/bin/cli.js", document, "-o", fresh))
	sameFile(t, "clients/typescript/src/schema.ts", fresh, filepath.Join(dir, "src/schema.ts"), "cd clients/typescript && npm ci && npm run generate")
	modules, err := filepath.Abs("../openapi/node_modules")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(modules, filepath.Join(dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	output(t, nodeTool(t, dir, "typescript/bin/tsc", "-p", "."))

	// A project that has installed it.
	project := t.TempDir()
	text := section(t, clientsDocument, "TypeScript")
	example := filepath.Join(dir, "examples/session.mjs")
	shows(t, text, "js", example, "const client = boxd(")
	source, err := os.ReadFile(example)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(project, "node_modules"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(dir, filepath.Join(project, "node_modules", "boxd-client")); err != nil {
		t.Fatal(err)
	}
	write(t, project, map[string]string{"session.mjs": string(source)})
	node, _ := mcpInspector(t) // a Node with WebSocket
	d, url := daemonFor(t)
	run := exec.CommandContext(t.Context(), node, "session.mjs", url, operatorToken)
	run.Dir = project
	wants(t, output(t, run), code(t, text, "")[0])

	// Output of a process is followed over the death of the daemon.
	script, err := os.ReadFile("testdata/follow.mjs")
	if err != nil {
		t.Fatal(err)
	}
	write(t, project, map[string]string{"follow.mjs": string(script)})
	follow := exec.CommandContext(t.Context(), node, "follow.mjs", url, operatorToken)
	follow.Dir = project
	var stderr bytes.Buffer
	follow.Stderr = &stderr
	out, err := follow.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := follow.Start(); err != nil {
		t.Fatal(err)
	}
	if line, _ := bufio.NewReader(out).ReadString('\n'); line != "begun\n" {
		t.Errorf("%q, %v: %s", line, follow.Wait(), &stderr)
		return
	}
	if err := d.Kill(); err != nil {
		t.Error(err)
	}
	if err := d.Start(); err != nil {
		t.Fatal(err)
	}
	if err := follow.Wait(); err != nil {
		t.Errorf("%v: %s", err, &stderr)
	}
}

// The client for TypeScript is built with the packages that test/openapi has.
func TestTypeScriptVersions(t *testing.T) {
	versions := func(path string) map[string]string {
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var p struct{ Dependencies, DevDependencies map[string]string }
		if err := json.Unmarshal(raw, &p); err != nil {
			t.Fatal(err)
		}
		all := map[string]string{}
		for _, list := range []map[string]string{p.Dependencies, p.DevDependencies} {
			for name, version := range list {
				all[name] = version
			}
		}
		return all
	}
	theirs := versions("../openapi/package.json")
	for name, version := range versions("../../clients/typescript/package.json") {
		if theirs[name] != version {
			t.Errorf("%s is %s, and %s in test/openapi", name, version, theirs[name])
		}
	}
}
