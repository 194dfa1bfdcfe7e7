package api

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/internal/testutil"
	"github.com/boxd/boxd/policy"
)

// shellLanguages are languages of the tests: sh, which every machine has, and others.
func shellLanguages() map[string]policy.LanguageConfig {
	command := func(args ...string) *[]string { return &args }
	return map[string]policy.LanguageConfig{
		"shell":   {Command: command("sh", "{file}"), File: ptr("main.sh"), Env: command("WHERE={dir}", "OVER=language")},
		"first":   {Command: command("cat", "{dir}/main.two"), File: ptr("main.two")},
		"second":  {Command: command("wc", "-c", "{file}"), File: ptr("other.two")},
		"missing": {Command: command("no-such-program", "{file}"), File: ptr("main.none")},
	}
}

func serveCode(t testing.TB) *fixture {
	return serve(t, func(_ *Options, c *policy.Config) { c.Languages = shellLanguages() })
}

func TestCode(t *testing.T) {
	f := serveCode(t)
	c, ctx := f.client(), t.Context()
	kept := filepath.Join(t.TempDir(), "made", "kept")
	for name, x := range map[string]struct {
		q    apitypes.CodeRequest
		want string
	}{
		"plain":       {apitypes.CodeRequest{Language: "shell", Code: "echo hello"}, "hello\n"},
		"by ending":   {apitypes.CodeRequest{File: "job.sh", Code: `basename "$0"`}, "job.sh\n"},
		"arguments":   {apitypes.CodeRequest{Language: "shell", Code: `printf '%s|' "$@"`, Args: []string{"a b", "{file}"}}, "a b|{file}|"},
		"environment": {apitypes.CodeRequest{Language: "shell", Code: `test "$WHERE" = "$(dirname "$0")" && echo $OVER`, Env: map[string]string{"OVER": "request"}}, "request\n"},
		"stdin":       {apitypes.CodeRequest{Language: "shell", Code: "cat", Stdin: "typed"}, "typed"},
		"directory":   {apitypes.CodeRequest{Language: "first", Code: "in it"}, "in it"},
		"files": {apitypes.CodeRequest{Language: "shell", Code: `. "$WHERE/lib/a.sh"; cat "$WHERE/raw" ` + kept,
			Files: []apitypes.CodeFile{{Path: "lib/a.sh", Content: "echo lib\n"}, {Path: "raw", ContentBase64: []byte("raw\n")}, {Path: kept, Content: "kept\n"}}}, "lib\nraw\nkept\n"},
		"empty file": {apitypes.CodeRequest{Language: "shell", Code: `wc -c <"$WHERE/empty"`, Files: []apitypes.CodeFile{{Path: "empty"}}}, "0\n"},
	} {
		x.q.Session = &apitypes.SessionSpec{}
		res, err := c.Code(ctx, "a", x.q)
		if err != nil || res.Stdout != x.want || res.Status != 0 {
			t.Errorf("%s: %+v, %v, want %q", name, res, err, x.want)
		}
	}
	var out bytes.Buffer
	if res, err := c.CodeStream(ctx, "a", apitypes.CodeRequest{Language: "shell", Code: "echo streamed"}, &out, nil); err != nil || out.String() != "streamed\n" || res.Status != 0 {
		t.Errorf("%q, %+v, %v", out.String(), res, err)
	}
	if b, err := os.ReadFile(kept); err != nil || string(b) != "kept\n" {
		t.Errorf("the absolute file: %q, %v", b, err)
	}
	// Whatever its end is, the code is removed; the fake box has the host's /tmp.
	for _, x := range []struct {
		code    string
		timeout apitypes.Duration
		status  int
	}{{"exit 3", 0, 3}, {"kill -9 $$", 0, 137}, {`chmod 0 "$WHERE/main.sh"`, 0, 0}, {"sleep 60", 50e6, 124}} {
		res, err := c.Code(ctx, "a", apitypes.CodeRequest{Language: "shell", Code: "printf %s \"$WHERE\"\n" + x.code, Timeout: x.timeout})
		if err != nil || res.Status != x.status || !strings.HasPrefix(res.Stdout, "/tmp/code-") {
			t.Errorf("%q: %+v, %v", x.code, res, err)
			continue
		}
		awaitGone(t, res.Stdout)
	}
}

// dirWriter takes the first piece of output, and cancels the request.
type dirWriter struct {
	dir    string
	cancel context.CancelFunc
}

func (w *dirWriter) Write(p []byte) (int, error) {
	w.dir += string(p)
	w.cancel()
	return len(p), nil
}

// A client that goes away takes the program and its code with it.
func TestCodeOfVanishedClient(t *testing.T) {
	f := serveCode(t)
	c := f.client()
	ensure(t, c, "a")
	ctx, cancel := context.WithCancel(t.Context())
	out := &dirWriter{cancel: cancel}
	if _, err := c.CodeStream(ctx, "a", apitypes.CodeRequest{Language: "shell", Code: `printf %s "$WHERE"; sleep 77`}, out, nil); err == nil {
		t.Error("the request went on")
	}
	if args := <-f.engine.killed; !strings.HasPrefix(args, "sh /tmp/code-") || out.dir == "" {
		t.Fatalf("killed %q, in %q", args, out.dir)
	}
	awaitGone(t, out.dir)
}

// awaitGone waits until there is nothing at path.
func awaitGone(t *testing.T, path string) {
	t.Helper()
	for deadline := time.Now().Add(testutil.Patience()); ; time.Sleep(time.Millisecond) {
		if _, err := os.Stat(path); os.IsNotExist(err) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s is left", path)
		}
	}
}

func TestCodeRefusals(t *testing.T) {
	f := serveCode(t)
	ensure(t, f.client(), "a")
	const path = "/v1/sessions/a/code"
	long := strings.Repeat("x", 5000)
	for _, x := range []struct{ body, code, field, text string }{
		{`{"language":"shell"}`, apitypes.CodeInvalid, "code", "not be empty"},
		{`{"language":"perl","code":"x"}`, apitypes.CodeInvalid, "language", `must be one of profile "default": first, missing, second, shell`},
		{`{"code":"x"}`, apitypes.CodeInvalid, "language", "must be one of"},
		{`{"code":"x","file":"a.zz"}`, apitypes.CodeInvalid, "language", `no language has files like "a.zz"`},
		{`{"code":"x","file":"Makefile"}`, apitypes.CodeInvalid, "language", "no language"},
		{`{"code":"x","file":"a.two"}`, apitypes.CodeInvalid, "language", "first or second"},
		{`{"code":"x","file":"../a.sh"}`, apitypes.CodeInvalid, "file", "without \"/\""},
		{`{"code":"x","file":"..","language":"shell"}`, apitypes.CodeInvalid, "file", "name of a file"},
		{`{"language":"missing","code":"x"}`, apitypes.CodeProgramNotFound, "language", "no-such-program"},
		{`{"language":"shell","code":"x","files":[{"path":"../x"}]}`, apitypes.CodeInvalid, "files[0].path", ""},
		{`{"language":"shell","code":"x","files":[{"path":""}]}`, apitypes.CodeInvalid, "files[0].path", ""},
		{`{"language":"shell","code":"x","files":[{"path":"a"},{"path":"d/"}]}`, apitypes.CodeInvalid, "files[1].path", ""},
		{`{"language":"shell","code":"x","files":[{"path":"` + long + `"}]}`, apitypes.CodeInvalid, "files[0].path", "shorter"},
		{`{"language":"shell","code":"x","files":[{"path":"./main.sh"}]}`, apitypes.CodeInvalid, "files[0].path", "the code itself"},
		{`{"language":"shell","code":"x","files":[{"path":"a","content":"b","content_base64":"Yg=="}]}`, apitypes.CodeInvalid, "files[0].content_base64", ""},
		{`{"language":"shell","code":"x","files":[` + strings.Repeat(`{"path":"a"},`, 64) + `{"path":"a"}]}`, apitypes.CodeInvalid, "files", "at most 64"},
		{`{"language":"shell","code":"x","files":[{"path":"main.sh/x"}]}`, apitypes.CodeFileType, "", "placing the code"},
		{`{"language":"shell","code":"x","args":["a\u0000"]}`, apitypes.CodeInvalid, "args", ""},
		{`{"language":"shell","code":"x","cwd":"a\u0000"}`, apitypes.CodeInvalid, "cwd", ""},
		{`{"language":"shell","code":"x","env":{"A=B":""}}`, apitypes.CodeInvalid, "env", ""},
		{`{"language":"shell","code":"x","argv":["sh"]}`, apitypes.CodeUnknownField, "argv", ""},
	} {
		if p := f.problem("POST", path, adminToken, x.body); p.Code != x.code || p.Field != x.field || !strings.Contains(p.Detail, x.text) {
			t.Errorf("%.80s: %+v", x.body, p)
		}
	}
	// A language that the profile does not have makes no session.
	if p := f.problem("POST", "/v1/sessions/b/code", adminToken, `{"language":"perl","code":"x","session":{}}`); p.Code != apitypes.CodeInvalid {
		t.Errorf("%+v", p)
	}
	if p := f.problem("GET", "/v1/sessions/b", adminToken, ""); p.Code != apitypes.CodeSessionNotFound {
		t.Errorf("%+v", p)
	}
}

// The audit log has the command line, as that of an exec, and profiles list their languages.
func TestCodeIsShown(t *testing.T) {
	file := filepath.Join(t.TempDir(), "audit.log")
	log, err := audit.Open(file, audit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	f := serve(t, func(o *Options, c *policy.Config) {
		o.Audit, c.Languages = log, shellLanguages()
		c.Profiles = map[string]policy.ProfileConfig{"none": {Languages: map[string]policy.LanguageConfig{"shell": {}, "first": {}, "second": {}, "missing": {}}}}
	})
	c, ctx := f.client(), t.Context()
	if _, err := c.Code(ctx, "a", apitypes.CodeRequest{Language: "shell", Code: "true", Args: []string{"seen"}, Session: &apitypes.SessionSpec{}}); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(file); err != nil || !strings.Contains(string(b), `/main.sh","seen"]`) {
		t.Errorf("%s, %v", b, err)
	}
	profiles, err := c.Profiles(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range profiles {
		if want := map[bool]int{true: 0, false: 4}[p.Name == "none"]; len(p.Languages) != want {
			t.Errorf("profile %s: %+v", p.Name, p.Languages)
		} else if want > 0 && (p.Languages[3].Name != "shell" || p.Languages[3].File != "main.sh" || !slices.Equal(p.Languages[3].Command, []string{"sh", "{file}"})) {
			t.Errorf("profile %s: %+v", p.Name, p.Languages)
		}
	}
	if p := f.problem("POST", "/v1/sessions/n/code", adminToken, `{"language":"shell","code":"x","session":{"profile":"none"}}`); p.Field != "language" || !strings.Contains(p.Detail, "profiles.none.languages") {
		t.Errorf("%+v", p)
	}
}

// The files of a request are outputs only if the program changes them.
func TestCodeOutputs(t *testing.T) {
	f := serveCode(t)
	ensure(t, f.client(), "a")
	dir := t.TempDir()
	for range 5 {
		res, err := f.client().Code(t.Context(), "a", apitypes.CodeRequest{
			Language: "shell", Code: "cd " + dir + "; cat given >made; echo more >>changed", Cwd: dir, Outputs: []string{"*"},
			Files: []apitypes.CodeFile{{Path: dir + "/given", Content: "given"}, {Path: dir + "/changed", Content: "it\n"}, {Path: "beside", Content: "x"}},
		})
		if err != nil || len(res.Outputs) != 2 || res.Outputs[0].Path != "changed" || res.Outputs[0].Content != "it\nmore\n" || res.Outputs[1].Path != "made" {
			t.Fatalf("%+v, %v", res, err)
		}
	}
}
