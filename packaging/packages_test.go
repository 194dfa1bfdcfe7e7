package packaging

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/boxd/boxd/config"
)

// TestExampleConfiguration: the file of the packages sets nothing, and each of its examples is valid.
func TestExampleConfiguration(t *testing.T) {
	unset := func(string) (string, bool) { return "", false }
	want, err := config.Load("", unset)
	if err != nil {
		t.Fatal(err)
	}
	got, err := config.Load("etc/config.yaml", unset)
	if err != nil {
		t.Fatal(err)
	}
	if got.StateDir != want.StateDir || got.Listen != want.Listen || got.TokensFile != want.TokensFile {
		t.Errorf("%+v, want the defaults %+v", got, want)
	}
	text, err := os.ReadFile("etc/config.yaml")
	if err != nil {
		t.Fatal(err)
	}
	examples := regexp.MustCompile(`(?m)^#([a-z_]|  )`).ReplaceAll(text, []byte("$1"))
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, examples, 0o600); err != nil {
		t.Fatal(err)
	}
	if c, err := config.Load(path, unset); err != nil || c.Listen != "127.0.0.1:8420" {
		t.Errorf("%v, listen %q, of\n%s", err, c.Listen, examples)
	}
}

// TestPackageFiles: every file that nfpm.yaml names is there, and every script is named.
func TestPackageFiles(t *testing.T) {
	text, err := os.ReadFile("nfpm.yaml")
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m): packaging/(\S+)$`).FindAllStringSubmatch(string(text), -1) {
		named[m[1]] = true
		if _, err := os.Stat(m[1]); err != nil {
			t.Error(err)
		}
	}
	scripts, err := filepath.Glob("[dr]*/p*")
	if err != nil || len(scripts) < 6 {
		t.Fatalf("%q, %v", scripts, err)
	}
	for _, script := range scripts {
		info, err := os.Stat(script)
		if err != nil || !named[script] || info.Mode()&0o111 == 0 {
			t.Errorf("%s: named %v in nfpm.yaml, %v, %v", script, named[script], info.Mode(), err)
		}
	}
	if !strings.Contains(string(text), "src: ${STAGE}/usr") {
		t.Error("nfpm.yaml does not take what make install installs")
	}
}
