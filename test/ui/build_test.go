package ui

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxd/boxd/internal/testutil"
	"github.com/boxd/boxd/test/browser"
	"github.com/boxd/boxd/test/daemon"
)

// The files that are committed are what the sources make, byte for byte, and the sources agree with the types of the
// API's document.
func TestBuild(t *testing.T) {
	built := filepath.Join(t.TempDir(), "dist")
	program(t, "../../ui", "build.mjs", built)
	const committed = "../../ui/dist"
	names, err := os.ReadDir(built)
	if err != nil {
		t.Fatal(err)
	}
	there, err := os.ReadDir(committed)
	if err != nil || len(there) != len(names) || len(names) < 5 {
		t.Errorf("%s has %d files, the sources make %d: npm run build, %v", committed, len(there), len(names), err)
	}
	for _, e := range names {
		want, err := os.ReadFile(filepath.Join(built, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join(committed, e.Name())); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s/%s is not what the sources make: npm ci && npm run build in ui, %v", committed, e.Name(), err)
		}
	}
}

// The commands of the document start a daemon to whose page their token signs in.
func TestDocument(t *testing.T) {
	testutil.RequireRoot(t)
	text, err := os.ReadFile("../../docs/ui.md")
	if err != nil {
		t.Fatal(err)
	}
	_, script, begun := strings.Cut(string(text), "```sh\n")
	script, rest, ended := strings.Cut(script, "```\n")
	if !begun || !ended || !strings.Contains(rest, "`http://127.0.0.1:8420/ui`") {
		t.Fatal("docs/ui.md has no commands, or not the URL of the page")
	}
	dir := testutil.ReachableDir(t, "")
	address := freeAddress(t)
	script = strings.NewReplacer("/etc/boxd", dir, "127.0.0.1:8420", address).Replace(script)
	before, serve, ok := strings.Cut(script, "boxd serve ")
	if !ok {
		t.Fatalf("no daemon is started:\n%s", script)
	}
	if out, err := exec.CommandContext(t.Context(), "sh", "-ec", before).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	token, err := exec.CommandContext(t.Context(), "cut", "-d ", "-f1", filepath.Join(dir, "tokens")).Output()
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, Browser: browser.Start(t, patience), base: "http://" + address}
	daemon.ForTest(t, daemon.Config{Dir: dir, Args: strings.Fields(serve)})
	tab := w.page("", 1000, 700)
	w.signIn(tab, strings.TrimSpace(string(token)))
	w.awaitText(tab, ".who", "token:me · default · administrator")
	w.awaitText(tab, "main", "There are no sessions.")
}

func TestTypes(t *testing.T) {
	if !testutil.Full() {
		t.Skip("takes long: only make full has it")
	}
	program(t, "../../ui", "node_modules/openapi-typescript/bin/cli.js", "../docs/openapi.json", "-o", "src/schema.d.ts")
	program(t, "../../ui", "node_modules/typescript/bin/tsc", "--noEmit")
}
