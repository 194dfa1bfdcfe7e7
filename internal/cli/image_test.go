package cli

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/api/apitypes"
)

var testImage = apitypes.Image{Name: "docker.io/library/python:3.12", Digest: "sha256:0123456789abcdef", Platform: "linux/amd64", Layers: []string{"a", "b"},
	Bytes: 120 << 20, Added: time.Now(), Entrypoint: []string{"python3"}}

func TestImageOfDaemon(t *testing.T) {
	dir := t.TempDir()
	archive := filepath.Join(dir, "a.tar")
	if err := os.WriteFile(archive, []byte("archive"), 0o600); err != nil {
		t.Fatal(err)
	}
	d := newFakeDaemon(t, func(r seen, w http.ResponseWriter) {
		switch {
		case strings.HasPrefix(r.what, "POST /v1/images/verify") && strings.Contains(r.body, "bad"):
			refuse(w, 422, apitypes.CodeImageDamaged, "image \"bad\": layer 1 differs")
		case r.what == "POST /v1/images":
			fmt.Fprintln(w, `{"progress":{"step":"download","layer":"sha256:00112233445566778899","done":1,"total":2048}}`)
			fmt.Fprintln(w, `{"progress":{"step":"download","layer":"sha256:00112233445566778899","done":2,"total":2048}}`)
			if strings.Contains(r.body, "absent") {
				fmt.Fprintln(w, `{"error":{"code":"image_not_found","detail":"image \"absent\": unknown","status":404}}`)
				return
			}
			send(w, apitypes.ImageEvent{Image: &testImage})
		case r.what == "GET /v1/images":
			send(w, apitypes.ImageList{Images: []apitypes.Image{testImage}})
		case r.what == "POST /v1/images/gc":
			send(w, apitypes.ImagesCollected{Images: 1, Layers: 2, Bytes: 2048})
		case r.what[:6] == "DELETE", strings.HasPrefix(r.what, "POST /v1/images/verify"):
			w.WriteHeader(http.StatusNoContent)
		case strings.HasPrefix(r.what, "POST /v1/images/import"):
			fmt.Fprintln(w, `{"progress":{"step":"unpack","done":1,"total":2048}}`)
			fmt.Fprintln(w, `{"progress":{"step":"unpack","done":2,"total":2048}}`)
			if strings.Contains(r.what, "name=broken") {
				fmt.Fprintln(w, `{"error":{"code":"image_damaged","detail":"the archive is broken","status":422}}`)
				return
			}
			send(w, apitypes.ImageEvent{Image: &testImage})
		default:
			send(w, testImage)
		}
	})
	const added = "docker.io/library/python:3.12 sha256:0123456789abcdef linux/amd64, layers: 2, 120 MiB\n"
	for _, c := range []struct {
		args, stdout, stderr string
		status               int
		request              string
	}{
		{"pull python:3.12", added, "layer 001122334455 download 2 KiB\n", 0, `POST /v1/images {"reference":"python:3.12"}`},
		{"pull python:3.12 -q", "docker.io/library/python:3.12\n", "", 0, `POST /v1/images {"reference":"python:3.12"}`},
		{"pull a --platform linux/arm64 --always --shared --json", `{"name":"docker.io`, "", 0, `POST /v1/images {"reference":"a","platform":"linux/arm64","shared":true,"always":true}`},
		{"pull absent -q", "", "boxd: image \"absent\": unknown\n", 125, `POST /v1/images {"reference":"absent"}`},
		{"pull a --login-file /x", "", "boxd: --login-file and --insecure: a daemon has registries of its own", 125, ""},
		{"import " + archive + " --name n:1 --shared", added, "image upload 7 B\nimage unpack 2 KiB\n", 0, `POST /v1/images/import?name=n%3A1&shared=1 archive`},
		{"import - --name n", added, "image unpack 2 KiB\n", 0, `POST /v1/images/import?name=n input`},
		{"import - --name n -q", "docker.io/library/python:3.12\n", "", 0, `POST /v1/images/import?name=n input`},
		{"import - --name broken", "", "boxd: the archive is broken\n", 125, `POST /v1/images/import?name=broken input`},
		{"import " + dir, "", "is a directory, and a daemon takes archives", 125, ""},
		{"import /nonexistent", "", "no such file", 125, ""},
		{"ls", "IMAGE\tTENANT\tDIGEST\tPLATFORM\tSIZE\tAGE\tUSED\ndocker.io/library/python:3.12\t-\t0123456789ab\tlinux/amd64\t120 MiB\t", "", 0, "GET /v1/images"},
		{"ls -q", "docker.io/library/python:3.12\n", "", 0, "GET /v1/images"},
		{"ls --json", `{"images":[{"name":"docker.io`, "", 0, "GET /v1/images"},
		{"ls --tenant *", "", `boxd: --tenant "*": must be one tenant`, 125, ""},
		{"inspect a/b:c", "{\n  \"name\": \"docker.io", "", 0, "GET /v1/images/inspect?reference=a%2Fb%3Ac"},
		{"inspect a --format {{.digest}} --shared", "sha256:0123456789abcdef\n", "", 0, "GET /v1/images/inspect?reference=a&shared=1"},
		{"rm a", "", "", 0, "DELETE /v1/images?reference=a"},
		{"gc", "deleted images: 1, layers: 2, 2 KiB\n", "", 0, "POST /v1/images/gc"},
		{"verify a", "a: ok\n", "", 0, `POST /v1/images/verify {"reference":"a"}`},
		{"verify bad", "bad: no: image \"bad\": layer 1 differs\n", "", 1, `POST /v1/images/verify {"reference":"bad"}`},
		{"verify bad --json", `{"image":"bad","ok":false,"error":"`, "", 1, `POST /v1/images/verify {"reference":"bad"}`},
		{"verify", "", "name the images to verify", 125, ""},
		{"verify a --all", "", "name the images to verify", 125, ""},
		{"pull A:B", "", `boxd: REFERENCE "A:B": must be`, 125, ""},
		{"pull host", "", `boxd: REFERENCE "host": means the host's own system directories`, 125, ""},
		{"import " + archive + " --name host", "", `boxd: --name "host": means the host's own system directories`, 125, ""},
		{"import " + archive + " --name A:B", "", `boxd: --name "A:B": must be a reference`, 125, ""},
		{"pull", "", "REFERENCE is missing", 125, ""},
		{"pull a --local --shared", "", "boxd: --shared without a daemon: has no meaning", 125, ""},
		{"rm a --local --shared", "", "boxd: --shared without a daemon: has no meaning", 125, ""},
		{"pull a --local --socket /x", "", "--local or --data-dir: cannot be used together", 125, ""},
	} {
		d.requests = nil
		v := newInvocation(t)
		v.Stdin = strings.NewReader("input")
		status := d.callWith(v, append([]string{"image"}, strings.Fields(c.args)...)...)
		got := ""
		if len(d.requests) > 0 {
			got = strings.TrimSpace(d.requests[0].what + " " + d.requests[0].body)
		}
		stdout, stderr := v.stdout.String(), v.stderr.String()
		if status != c.status || !strings.HasPrefix(stdout, c.stdout) || (c.stdout == "") != (stdout == "") || !strings.Contains(stderr, c.stderr) || (c.stderr == "") != (stderr == "") || got != c.request || len(d.requests) > 1 {
			t.Errorf("boxd image %s: status %d, %q, %q, request %q", c.args, status, stdout, stderr, got)
		}
	}
	d.requests = nil
	if status, v := d.call("image", "verify", "--all"); status != 0 || v.stdout.String() != "docker.io/library/python:3.12: ok\n" || len(d.requests) != 2 {
		t.Errorf("status %d, %q, %v", status, v.stdout.String(), d.requests)
	}
}

// boxd image rm goes on after an image that cannot be removed.
func TestImageRemove(t *testing.T) {
	d := newFakeDaemon(t, func(r seen, w http.ResponseWriter) {
		switch {
		case strings.HasSuffix(r.what, "=none"):
			refuse(w, 404, apitypes.CodeImageNotFound, `unknown image "none": pull or import it first`)
		case strings.HasSuffix(r.what, "=base"):
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(404)
			send(w, apitypes.Problem{Status: 404, Code: apitypes.CodeImageNotFound, Field: "shared", Detail: `unknown image "base" of the tenant: shared false: must be true`})
		default:
			w.WriteHeader(http.StatusNoContent)
		}
	})
	status, v := d.call("image", "rm", "none", "a", "base", "b", "--json")
	d.wantRequests("DELETE /v1/images?reference=none", "DELETE /v1/images?reference=a", "DELETE /v1/images?reference=base", "DELETE /v1/images?reference=b")
	wantErr := `boxd: unknown image "none": pull or import it first; unknown image "base" of the tenant: --shared false: must be true` + "\n"
	if out := v.stdout.String(); status != 125 || out != `{"removed":"a"}`+"\n"+`{"removed":"b"}`+"\n" || v.stderr.String() != wantErr {
		t.Errorf("status %d, %q, %q", status, out, v.stderr.String())
	}

	d = &fakeDaemon{t: t, socket: filepath.Join(t.TempDir(), "none")}
	if status, v := d.call("image", "rm", "a", "b"); status != 125 || strings.Count(v.stderr.String(), d.socket) != 1 {
		t.Errorf("without a daemon: status %d, %q", status, v.stderr.String())
	}
}

// Lines of layers are redrawn on a terminal, and fit into it.
func TestLayerBars(t *testing.T) {
	var out bytes.Buffer
	b := &layerBars{out: screen{Writer: &out, terminal: true}, width: 30, most: 2}
	for _, p := range []apitypes.ImageProgress{{Step: "resolve"}, {Step: "download", Layer: "sha256:aa", Done: 1, Total: 2}, {Step: "unpack", Layer: "sha256:aa", Done: 5, Total: 2}, {Step: "x\x1b[2J", Layer: "sha256:bb"}} {
		b.show(p)
	}
	e := eraseLine + "\n"
	want := "\rimage resolve" + e +
		"\x1b[1A\rimage resolve" + e + "\rlayer aa download [##########" + e
	if got := out.String(); !strings.HasPrefix(got, want) || !strings.HasSuffix(got, "\x1b[2A\rlayer aa unpack [############"+e+"\rlayer bb x?[2J"+e) {
		t.Errorf("%q", got)
	}
}

func TestLogin(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	encoded := base64.StdEncoding.EncodeToString([]byte("user:pass:word"))
	auth := fmt.Sprintf(`{"auths":{"https://index.docker.io/v1/":{"auth":%q},"ghcr.io":{},"r:5000":{"auth":%q},"bad":{"auth":"%%"},"token":{"identitytoken":"x"}},"credsStore":"desktop","credHelpers":{"gcr.io":"gcloud"}}`, encoded, encoded)
	for _, c := range []struct{ file, config, host, want, fails string }{
		{"", auth, "docker.io", "user:pass:word", ""},
		{"", auth, "r:5000", "user:pass:word", ""},
		{"", auth, "quay.io", "", ""},
		{"", auth, "ghcr.io", "", "names a credential helper or token, which boxd does not support: use --login-file"},
		{"", auth, "gcr.io", "", "names a credential helper"},
		{"", auth, "token", "", "names a credential helper or token"},
		{"", auth, "bad", "", "auth must be USER:PASSWORD in base64"},
		{"", "", "docker.io", "", "unexpected end of JSON"},
		{"", "-", "docker.io", "", ""},
		{"a:b\nc", "{", "docker.io", "a:b", ""},
		{"a:b\r\n", auth, "ghcr.io", "a:b", ""},
		{"a", auth, "docker.io", "", "must begin with a line USER:PASSWORD"},
		{":b", auth, "docker.io", "", "must begin with a line USER:PASSWORD"},
		{strings.Repeat("a:", 1<<20), auth, "docker.io", "", "must be at most 1 MiB"},
	} {
		os.Remove(filepath.Join(dir, "config.json"))
		if c.config != "-" {
			write("config.json", c.config)
		}
		file := ""
		if c.file != "" {
			file = write("login", c.file)
		}
		a := App{LookupEnv: func(key string) (string, bool) { return dir, key == "DOCKER_CONFIG" }}
		got, err := a.login(file, c.host)
		if got != c.want || (err == nil) != (c.fails == "") || err != nil && (!strings.Contains(err.Error(), c.fails) || strings.Contains(err.Error(), "pass")) {
			t.Errorf("%.20q, %s: %q, %v, want %q", c.file, c.host, got, err, c.fails)
		}
	}
}
