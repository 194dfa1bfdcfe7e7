package api

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/policy"
)

// fuzzBody feeds bodies to a decoder: whatever comes is an error of the client's, or
// a value that says the same when it is written and read again.
func fuzzBody[T any](f *testing.F, check func(*testing.T, *T)) {
	for _, s := range []string{`{}`, `null`, `{"argv":["a"],"timeout":"1m","output_limit":"1M"}`, `{"id":"a","memory":1,"idle_ttl":-1,"mounts":[{"source":"/a","target":"/b"}]}`,
		`{"session":{"env":{"a":"b"}},"user":{"uid":0,"gid":0},"stdin_base64":"/w=="}`, `{"scope":"{a}","variables":{"a":"b"}}`, `{"timeout":1e9,"grace":0.000000001}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		v := new(T)
		if err := decodeJSON(body, v); err != nil {
			if k := kindOf(err); k.status/100 != 4 {
				t.Fatalf("%q: %d: %v", body, k.status, err)
			}
			if p := problemOf(err, "r"); strings.ContainsAny(p.Detail, "\n\r\x00") {
				t.Fatalf("%q: %q", body, p.Detail)
			}
			return
		}
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatalf("%q: %v", body, err)
		}
		again := new(T)
		if err := decodeJSON(text, again); err != nil {
			t.Fatalf("%q: %q: %v", body, text, err)
		}
		if second, _ := json.Marshal(again); string(second) != string(text) {
			t.Fatalf("%q, then %q", text, second)
		}
		check(t, v)
	})
}

func FuzzExecBody(f *testing.F) {
	fuzzBody(f, func(t *testing.T, q *apitypes.ExecRequest) {
		e, err := execOf(q)
		if err != nil && !errors.Is(err, engine.ErrInvalid) {
			t.Fatal(err)
		}
		if err == nil && (len(e.Args) == 0 != (len(q.Argv) == 0 && q.Shell == "") || e.Timeout < 0 || e.OutputLimit < 0) {
			t.Fatalf("%+v", e)
		}
	})
}

func FuzzCodeBody(f *testing.F) {
	f.Add([]byte(`{"language":"a","code":"x","file":"b","args":["c"],"files":[{"path":"d/e","content":"f"},{"path":"/g","content_base64":"/w=="}]}`))
	fuzzBody(f, func(t *testing.T, q *apitypes.CodeRequest) {
		e, err := codeOf(q)
		if err != nil && !errors.Is(err, engine.ErrInvalid) {
			t.Fatal(err)
		}
		if err != nil {
			return
		}
		list, err := codeFilesOf(q.Files, e.Code.Dir)
		if err != nil || len(list) > maxCodeFiles {
			t.Fatal(len(list), err)
		}
		for i, f := range list {
			if !strings.HasPrefix(q.Files[i].Path, "/") && !strings.HasPrefix(f.path, e.Code.Dir+"/") {
				t.Fatalf("%q is at %q", q.Files[i].Path, f.path)
			}
		}
	})
}

func FuzzSessionBody(f *testing.F) {
	rules, err := policy.New(policy.Config{})
	if err != nil {
		f.Fatal(err)
	}
	fuzzBody(f, func(t *testing.T, q *apitypes.SessionRequest) {
		r := policy.Request{Wishes: q.SessionSpec}
		if !reflect.DeepEqual(r.User, q.User) {
			t.Fatal("user")
		}
		if _, err := rules.Resolve("t", r); err != nil && kindOf(err).status/100 != 4 {
			t.Fatalf("%+v: %v", q, err)
		}
	})
}

func FuzzTokens(f *testing.F) {
	f.Add(tokenFile)
	f.Add(adminToken + " acme operator ci scope={user} requests=0.5 requests_burst=3 execs=-1 creates=1e3")
	f.Fuzz(func(t *testing.T, text string) {
		if tokens, err := tokensOf(strings.NewReader(text)); (tokens == nil) == (err == nil) {
			t.Fatalf("%v, %v", tokens, err)
		}
	})
}
