package api

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/api/apitypes"
)

// matrix says which callers may use which route: "-" is refused because of the caller (401
// or 403), "+" is admitted, whatever the answer is then. The order is: no credentials,
// viewer, operator, viewer of all tenants, admin.
var matrix = map[string]string{
	"GET /healthz":         "+++++",
	"GET /readyz":          "-++++",
	"GET /metrics":         "---++",
	"GET /ui":              "+++++",
	"GET /ui/{file}":       "+++++",
	"POST /v1/login":       "+++++",
	"GET /v1/login":        "-++++",
	"DELETE /v1/login":     "-++++",
	"GET /v1/openapi.json": "-++++",
	"GET /v1/status":       "-++++",
	"GET /v1/doctor":       "--+-+",
	"GET /v1/errors":       "-++++",
	"GET /v1/events":       "-++++",
	"GET /v1/profiles":     "-++++",
	"GET /v1/execs":        "-++++",
	"GET /v1/usage":        "-++++",

	"POST /v1/run":                         "--+-+",
	"GET /v1/sessions":                     "-++++",
	"POST /v1/sessions":                    "--+-+",
	"GET /v1/sessions/{id}":                "-++++",
	"PATCH /v1/sessions/{id}":              "--+-+",
	"DELETE /v1/sessions/{id}":             "--+-+",
	"POST /v1/sessions/{id}/pause":         "--+-+",
	"POST /v1/sessions/{id}/resume":        "--+-+",
	"GET /v1/sessions/{id}/usage":          "-++++",
	"GET /v1/sessions/{id}/network":        "-++++",
	"GET /v1/sessions/{id}/ports":          "-++++",
	"POST /v1/sessions/{id}/exec":          "--+-+",
	"GET /v1/sessions/{id}/execs":          "-++++",
	"POST /v1/sessions/{id}/code":          "--+-+",
	"GET /v1/sessions/{id}/ports/{port}":   "--+-+",
	"GET /v1/sessions/{id}/tunnels/{port}": "--+-+",
	"POST /v1/sessions/{id}/links":         "--+-+",
	"DELETE /v1/sessions/{id}/links":       "--+-+",

	"GET /v1/sessions/{id}/processes":               "-++++",
	"POST /v1/sessions/{id}/processes":              "--+-+",
	"GET /v1/sessions/{id}/processes/{pid}":         "-++++",
	"DELETE /v1/sessions/{id}/processes/{pid}":      "--+-+",
	"POST /v1/sessions/{id}/processes/{pid}/stop":   "--+-+",
	"POST /v1/sessions/{id}/processes/{pid}/signal": "--+-+",
	"GET /v1/sessions/{id}/processes/{pid}/relay":   "-++++",
	"GET /v1/sessions/{id}/processes/{pid}/logs":    "-++++",

	"GET /v1/sessions/{id}/files":            "-++++",
	"GET /v1/sessions/{id}/files/stat":       "-++++",
	"GET /v1/sessions/{id}/files/content":    "-++++",
	"PUT /v1/sessions/{id}/files/content":    "--+-+",
	"DELETE /v1/sessions/{id}/files/content": "--+-+",
	"POST /v1/sessions/{id}/files/mkdir":     "--+-+",
	"PUT /v1/sessions/{id}/files/symlink":    "--+-+",
	"POST /v1/sessions/{id}/files/rename":    "--+-+",
	"GET /v1/sessions/{id}/files/watch":      "-++++",
	"POST /v1/sessions/{id}/files/copy":      "--+-+",
	"GET /v1/sessions/{id}/files/tar":        "-++++",
	"PUT /v1/sessions/{id}/files/tar":        "--+-+",

	"GET /v1/volumes":           "-++++",
	"POST /v1/volumes":          "--+-+",
	"GET /v1/volumes/{name}":    "-++++",
	"PATCH /v1/volumes/{name}":  "--+-+",
	"DELETE /v1/volumes/{name}": "--+-+",

	"GET /v1/images":         "-++++",
	"POST /v1/images":        "--+-+",
	"DELETE /v1/images":      "--+-+",
	"GET /v1/images/inspect": "-++++",
	"POST /v1/images/import": "--+-+",
	"POST /v1/images/verify": "--+-+",
	"POST /v1/images/gc":     "----+",

	"GET /v1/sensitive-paths":    "---++",
	"DELETE /v1/sensitive-paths": "----+",
}

func TestRoles(t *testing.T) {
	f := serve(t, nil)
	tokens := []string{"", viewerToken, operatorToken, scraperToken, adminToken}
	for _, rt := range routes {
		name := rt.method + " " + rt.path
		want, ok := matrix[name]
		if !ok {
			t.Errorf("%s: say in the matrix who may", name)
			continue
		}
		got := ""
		for _, token := range tokens {
			got += map[bool]string{true: "+", false: "-"}[f.admitted(rt, token)]
		}
		if got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	if len(matrix) != len(routes) {
		t.Errorf("%d routes, %d rows", len(routes), len(matrix))
	}
}

// admitted says whether a request got past the question of who sent it.
func (f *fixture) admitted(rt route, token string) bool {
	f.t.Helper()
	path := strings.NewReplacer("{id}", "none", "{pid}", "none", "{name}", "none", "{port}", "80").Replace(rt.path)
	req, err := http.NewRequest(rt.method, f.base+path, nil)
	if err != nil {
		f.t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	req.Header.Set(TenantHeader, map[bool]string{true: "acme"}[token == scraperToken || token == adminToken])
	resp, err := f.http.Do(req)
	if err != nil {
		f.t.Fatal(err)
	}
	resp.Body.Close() // a stream of events has no end
	return resp.StatusCode != http.StatusUnauthorized && resp.StatusCode != http.StatusForbidden
}

// What is another tenant's looks as if it were not there.
func TestTenantsDoNotMeet(t *testing.T) {
	f := serve(t, nil)
	ours, theirs := f.as(operatorToken, ""), f.as(strangerToken, "")
	ensure(t, ours, "secret")
	if _, err := ours.Start(t.Context(), "secret", apitypes.ProcessRequest{ID: "p", Argv: []string{"sleep", "66"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := ours.CreateVolume(t.Context(), apitypes.VolumeRequest{Name: "secret", Size: 8 << 20}); err != nil {
		t.Fatal(err)
	}
	for _, rt := range routes {
		if !strings.Contains(rt.path, "{id}") && !strings.Contains(rt.path, "{name}") {
			continue
		}
		body := map[string]string{"exec": `{"argv":["true"]}`, "code": `{"language":"x","code":"x"}`, "start-process": `{"id":"q","argv":["true"]}`, "mkdir": `{"path":"x"}`, "rename-file": `{"path":"x","to":"y"}`, "copy-files": `{"path":"x","from":"y"}`, "resize-volume": `{"size":"9M"}`, "signal-process": `{"signal":"1"}`, "make-link": `{"port":80}`}[rt.name]
		if body == "" && (rt.body != nil || rt.rawBody != "") {
			body = "{}"
		}
		there, answer := f.raw(rt.method, fill(rt.path, "secret"), strangerToken, body)
		nowhere, other := f.raw(rt.method, fill(rt.path, "absent"), strangerToken, body)
		a, b := checkProblem(t, there, answer), checkProblem(t, nowhere, other)
		a.Instance, b.Instance = "", ""
		a.Detail = strings.ReplaceAll(a.Detail, "secret", "absent")
		if a.Status != 404 || a.Detail != b.Detail || a.Code != b.Code {
			t.Errorf("%s %s:\n%+v\n%+v", rt.method, rt.path, a, b)
		}
	}
	ensure(t, theirs, "own")
	for name, err := range map[string]error{
		"copy of files":      second(theirs.CopyFiles(t.Context(), "own", apitypes.CopyRequest{Path: t.TempDir(), From: "/etc/hostname", FromSession: "secret"})),
		"copy of a volume":   second(theirs.CreateVolume(t.Context(), apitypes.VolumeRequest{Name: "copy", From: "secret"})),
		"volume of a tenant": second(theirs.Update(t.Context(), "own", apitypes.SessionUpdate{AttachVolumes: []apitypes.SessionVolume{{Name: "secret", Target: "/x"}}})),
	} {
		if !isCode(err, apitypes.CodeSessionNotFound) && !isCode(err, apitypes.CodeVolumeNotFound) && !isCode(err, apitypes.CodeInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := theirs.Remove(t.Context(), "own"); err != nil {
		t.Fatal(err)
	}
	if list, err := theirs.Sessions(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("list: %+v, %v", list, err)
	}
	if list, err := theirs.Volumes(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("volumes: %+v, %v", list, err)
	}
	if s, err := theirs.Status(t.Context()); err != nil || s.Processes != 0 || len(s.Sessions) != 0 || s.Audit != nil {
		t.Errorf("status: %+v, %v", s, err)
	}
	for _, tenant := range []string{"acme", AllTenants, "default", "no such"} {
		p := f.problem("GET", "/v1/sessions", strangerToken, "", TenantHeader, tenant)
		if p.Code != apitypes.CodeForbidden {
			t.Errorf("tenant %q: %+v", tenant, p)
		}
	}
	for tenant, want := range map[string]int{"": 0, "acme": 1, "other": 0, AllTenants: 1} {
		if list, err := f.as(adminToken, tenant).Sessions(t.Context()); err != nil || len(list) != want {
			t.Errorf("admin, tenant %q: %d, %v", tenant, len(list), err)
		}
	}
	if p := f.problem("GET", "/v1/sessions/secret", adminToken, "", TenantHeader, AllTenants); p.Code != apitypes.CodeInvalid {
		t.Errorf("one session of all tenants: %+v", p)
	}
	if p := f.problem("GET", "/v1/sessions", adminToken, "", TenantHeader, "no such"); p.Code != apitypes.CodeInvalid {
		t.Errorf("no tenant's name: %+v", p)
	}
}

// fill puts ids into a path, and a path of a file into the query.
func fill(path, id string) string {
	path = strings.NewReplacer("{id}", id, "{name}", id, "{pid}", "p", "{port}", "80").Replace(path)
	if strings.Contains(path, "/files") && !strings.HasSuffix(path, "mkdir") && !strings.HasSuffix(path, "rename") && !strings.HasSuffix(path, "copy") {
		path += "?path=x"
	}
	if strings.HasSuffix(path, "symlink?path=x") {
		path += "&target=y"
	}
	return path
}

// A viewer watches a process and cannot write to it. Possible secrets are hidden from it,
// and reading does not count as use of the session.
func TestViewerWatches(t *testing.T) {
	f := serve(t, nil)
	r := apitypes.SessionRequest{ID: "a", SessionSpec: apitypes.SessionSpec{Env: map[string]string{"KEY": "secret"}}}
	made, err := f.as(operatorToken, "").Ensure(t.Context(), r)
	if err != nil || !slices.Equal(made.Env, []string{"KEY=secret"}) {
		t.Fatalf("%+v, %v", made, err)
	}
	list, err := f.as(viewerToken, "").Sessions(t.Context())
	if err != nil || !slices.Equal(list[0].Env, []string{"KEY"}) {
		t.Errorf("%+v, %v", list, err)
	}
	if _, err := f.as(viewerToken, "").StatFile(t.Context(), "a", t.TempDir()); err != nil {
		t.Error(err)
	}
	seen, err := f.as(viewerToken, "").Session(t.Context(), "a")
	// The wall clock is computed anew each time; a process takes longer than this.
	if err != nil || seen.LastUsedAt.Sub(list[0].LastUsedAt).Abs() > 200*time.Microsecond {
		t.Errorf("%v, then %v, %v", list[0].LastUsedAt, seen.LastUsedAt, err)
	}
	if _, err := f.as(operatorToken, "").Start(t.Context(), "a", apitypes.ProcessRequest{ID: "p", Argv: []string{"cat"}}); err != nil {
		t.Fatal(err)
	}
	viewer := f.as(viewerToken, "")
	if _, err := viewer.AttachOnce(t.Context(), "a", "p", attachWrite); !isCode(err, apitypes.CodeForbidden) {
		t.Errorf("writing: %v", err)
	}
	a, err := viewer.AttachOnce(t.Context(), "a", "p", attachRead)
	if err != nil {
		t.Fatal(err)
	}
	if a.Hello().Writer {
		t.Error("a viewer is the writer")
	}
	a.Close()
}
