package protocol

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestParse(t *testing.T) {
	const rest = `"action":"a","data":{}`
	tests := []struct {
		name, msg string
		seq       string // "" for messages that are ignored
		wrong     string // part of the error, "" if there is none
	}{
		{"plain", `{"seq_id": 67844, "action": "box_status", "data": {}}`, "67844", ""},
		{"space around", " \r\n\t{\"seq_id\" :1 ,\n" + rest + " } \n", "1", ""},
		{"unknown keys", `{"seq_id":1,"x":[{"code":1}],` + rest + `}`, "1", ""},
		{"data is kept", `{"seq_id":1,"action":"a","data":{"a":[1,{"b":null}]}}`, "1", ""},
		{"the last of several counts", `{"seq_id":1,"seq_id":2,` + rest + `}`, "2", ""},
		{"escaped name", `{"\u0073eq_id":3,` + rest + `}`, "3", ""},
		{"seq verbatim", `{"seq_id":-1.50e+3,` + rest + `}`, "-1.50e+3", ""},
		{"seq huge", `{"seq_id":123456789012345678901234567890,` + rest + `}`, "123456789012345678901234567890", ""},
		{"null context", `{"seq_id":1,"context":null,` + rest + `}`, "1", ""},
		{"names are case-sensitive", `{"Seq_Id":1,` + rest + `}`, "-1", "seq_id: is missing"},

		{"seq missing", `{` + rest + `}`, "-1", "seq_id: is missing"},
		{"seq null", `{"seq_id":null,` + rest + `}`, "-1", "seq_id: null: must be a number"},
		{"seq a word", `{"seq_id":"x",` + rest + `}`, "-1", "must be a number"},
		{"seq an object", `{"seq_id":{"a":1},` + rest + `}`, "-1", "must be a number"},
		{"seq NaN", `{"seq_id":NaN,` + rest + `}`, "-1", "must be a number"},
		{"seq Infinity", `{"seq_id":-Infinity,` + rest + `}`, "-1", "must be a number"},
		{"seq too long to repeat", `{"seq_id":` + strings.Repeat("1", 65) + `,` + rest + `}`, "-1", "must be a number"},
		{"data missing", `{"seq_id":1,"action":"a"}`, "1", "data: is missing"},
		{"data null", `{"seq_id":1,"action":"a","data":null}`, "1", "data: null: must be an object"},
		{"data a list", `{"seq_id":1,"action":"a","data":[]}`, "1", "must be an object"},
		{"action null", `{"seq_id":1,"action":null,"data":{}}`, "1", "action: null: want a string"},
		{"action a number", `{"seq_id":1,"action":5,"data":{}}`, "1", "want a string"},
		{"action half a character", `{"seq_id":1,"action":"\ud800","data":{}}`, "1", "surrogate"},
		{"context a word", `{"seq_id":1,"context":"x",` + rest + `}`, "1", "context: \"x\": want an object"},
		{"deep", `{"seq_id":7,` + rest + `,"x":` + strings.Repeat("[", 100_000), "7", "nested too deep"},
		{"deep objects", `{"seq_id":7,` + rest + `,"x":` + strings.Repeat(`{"a":`, 600), "7", "nested too deep"},

		{"empty", ``, "", ""},
		{"space", ` `, "", ""},
		{"a list", `[{"seq_id":1,` + rest + `}]`, "", ""},
		{"a number", `1`, "", ""},
		{"null", `null`, "", ""},
		{"cut", `{"seq_id":1,"action":"a","data":{}`, "", ""},
		{"something behind", `{"seq_id":1,` + rest + `}{}`, "", ""},
		{"comma at the end", `{"seq_id":1,` + rest + `,}`, "", ""},
		{"no comma", `{"seq_id":1 ` + rest + `}`, "", ""},
		{"no colon", `{"seq_id" 1,` + rest + `}`, "", ""},
		{"single quotes", `{'seq_id':1}`, "", ""},
		{"leading zero", `{"seq_id":01,` + rest + `}`, "", ""},
		{"plus", `{"seq_id":+1,` + rest + `}`, "", ""},
		{"no digits behind the point", `{"seq_id":1.,` + rest + `}`, "", ""},
		{"control character", "{\"seq_id\":1,\"a\":\"\n\"," + rest + "}", "", ""},
		{"bad escape", `{"seq_id":1,"a":"\x",` + rest + `}`, "", ""},
		{"cut escape", `{"seq_id":1,"a":"\u12`, "", ""},
		{"byte order mark", "\ufeff{\"seq_id\":1," + rest + "}", "", ""},
		{"an answer", `{"seq_id":1,"code":0,"message":"","data":{}}`, "", ""},
		{"an answer with an action", `{"seq_id":1,` + rest + `,"code":null}`, "", ""},
		{"neither", `{"seq_id":1,"data":{}}`, "", ""},
		{"empty object", `{}`, "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, err := Parse([]byte(tt.msg))
			var e *Error
			switch {
			case tt.seq == "":
				if !errors.Is(err, ErrIgnore) {
					t.Errorf("got %+v, %v: want it ignored", r, err)
				}
				return
			case string(r.Seq) != tt.seq:
				t.Errorf("seq %s, want %s", r.Seq, tt.seq)
			}
			if tt.wrong == "" {
				if err != nil {
					t.Errorf("got %v", err)
				}
			} else if !errors.As(err, &e) || e.Class != validation || !strings.Contains(e.Text, tt.wrong) {
				t.Errorf("got %v, want a ValidationError with %q", err, tt.wrong)
			}
		})
	}
}

func TestContext(t *testing.T) {
	const who = `"instance_uuid":"i","workspace_uuid":"w"`
	digest := strings.Repeat("a0", 32)
	triple := func(installation, revision, digest string) string {
		return `{` + who + `,"installation_uuid":` + installation + `,"runtime_revision":` + revision + `,"artifact_digest":` + digest + `}`
	}
	tests := []struct {
		context string
		want    Context
		wrong   string
	}{
		{`{` + who + `}`, Context{"i", "w", 1}, ""},
		{`{` + who + `,"placement_generation":7}`, Context{"i", "w", 7}, ""},
		{`{` + who + `,"placement_generation":"7"}`, Context{"i", "w", 7}, ""},
		{`{` + who + `,"placement_generation":7.0}`, Context{"i", "w", 7}, ""},
		{`{"instance_uuid":"\u2003 i\u001f","workspace_uuid":"\u3000w x\u0085"}`, Context{"i", "w x", 1}, ""},
		{`{` + who + `,"installation_uuid":null}`, Context{"i", "w", 1}, ""},
		{`{` + who + `,"installation_uuid":"x"}`, Context{"i", "w", 1}, ""},
		{triple(`"x"`, `1`, `"`+digest+`"`), Context{"i", "w", 1}, ""},

		{`{}`, Context{}, "instance_uuid: is missing"},
		{`{"instance_uuid":"i"}`, Context{}, "workspace_uuid: is missing"},
		{`{"instance_uuid":" ","workspace_uuid":"w"}`, Context{}, "must not be empty"},
		{`{"instance_uuid":5,"workspace_uuid":"w"}`, Context{}, "want a string"},
		{`{"instance_uuid":"i","workspace_uuid":null}`, Context{}, "want a string"},
		{`{` + who + `,"placement_generation":0}`, Context{}, "at least 1"},
		{`{` + who + `,"placement_generation":-9223372036854775809}`, Context{}, "out of the range"},
		{`{` + who + `,"placement_generation":1.5}`, Context{}, "fraction"},
		{`{` + who + `,"placement_generation":1e300}`, Context{}, "out of the range"},
		{`{` + who + `,"placement_generation":1e999}`, Context{}, "finite"},
		{`{` + who + `,"placement_generation":NaN}`, Context{}, "integer"},
		{`{` + who + `,"placement_generation":null}`, Context{}, "integer"},
		{`{` + who + `,"installation_uuid":" "}`, Context{}, "must not be empty"},
		{`{` + who + `,"other":1}`, Context{}, `unknown key "other"`},
		{`{` + who + `,"Workspace_uuid":"v"}`, Context{}, `unknown key "Workspace_uuid"`},
		{`{` + who + `,"runtime_revision":1}`, Context{}, "go together"},
		{`{` + who + `,"artifact_digest":"` + digest + `"}`, Context{}, "go together"},
		{triple(`null`, `1`, `"`+digest+`"`), Context{}, "go together"},
		{triple(`"x"`, `0`, `"`+digest+`"`), Context{}, "at least 1"},
		{triple(`"x"`, `-99999999999999999999`, `"`+digest+`"`), Context{}, "at least 1"},
		{triple(`"x"`, `"1"`, `"`+digest+`"`), Context{}, "integer"},
		{triple(`"x"`, `true`, `"`+digest+`"`), Context{}, "integer"},
		{triple(`"x"`, `1`, `"`+strings.ToUpper(digest)+`"`), Context{}, "hexadecimal"},
		{triple(`"x"`, `1`, `"`+digest[1:]+`"`), Context{}, "hexadecimal"},
		{triple(`"x"`, `1`, `7`), Context{}, "want a string"},
		{strings.Replace(triple(`"x"`, `1`, `"`+digest+`"`), `{`, `{"placement_generation":"1",`, 1), Context{}, "must be an integer"},
		{`[]`, Context{}, "want an object"},
	}
	for _, tt := range tests {
		r, err := Parse([]byte(`{"seq_id":1,"action":"a","data":{},"context":` + tt.context + `}`))
		if tt.wrong == "" {
			if err != nil || r.Context == nil || *r.Context != tt.want {
				t.Errorf("%s: got %+v, %v", tt.context, r.Context, err)
			}
		} else if err == nil || !strings.Contains(err.Error(), tt.wrong) {
			t.Errorf("%s: got %v, want %q", tt.context, err, tt.wrong)
		}
	}
}

func TestNames(t *testing.T) {
	c := Context{"lbc-instance", "lbc-workspace", 1}
	tests := []struct{ id, want string }{
		{"lbc_session", "ws-dc28ebcfd22f6415ec7ffb16-g1-lbc_session"}, // as it was on the wire
		{" a/b c:d ", "ws-dc28ebcfd22f6415ec7ffb16-g1-a-b-c-d"},
		{"a//b", "ws-dc28ebcfd22f6415ec7ffb16-g1-a-b"},
		{"a/-/b", "ws-dc28ebcfd22f6415ec7ffb16-g1-a---b"}, // a literal "-" does not end a run
		{"-a-", "ws-dc28ebcfd22f6415ec7ffb16-g1-a"},
		{"\u3000\x1fä1.2é\u0085", "ws-dc28ebcfd22f6415ec7ffb16-g1-1.2"},
		{"٣x\x00y", "ws-dc28ebcfd22f6415ec7ffb16-g1-x-y"}, // a digit of another script does not count
		{"..", "ws-dc28ebcfd22f6415ec7ffb16-g1-.."},
		{"", ""}, {" ", ""}, {"---", ""}, {"é", ""}, {"/", ""},
	}
	for _, tt := range tests {
		got, err := c.Physical(tt.id)
		var e *Error
		if got != tt.want || tt.want == "" && (!errors.As(err, &e) || e.Class != ValueError) {
			t.Errorf("%q: got %q, %v, want %q", tt.id, got, err, tt.want)
		}
		if tt.want != "" && (!c.Owns(got) || c.Runtime()+"-"+c.Logical(got) != got) {
			t.Errorf("%q: %q is not %v's, or %q not its logical name", tt.id, got, c, c.Logical(got))
		}
	}
	if g := (Context{"lbc-instance", "lbc-workspace", 12}); g.Owns("ws-dc28ebcfd22f6415ec7ffb16-g1-x") || c.Owns("ws-dc28ebcfd22f6415ec7ffb16-g12-x") {
		t.Error("a generation owns names of another")
	}
}

func TestReplies(t *testing.T) {
	boxErr := func(format string, a ...any) error { return Errorf(SessionNotFound, format, a...) }
	long := strings.Repeat("é", 4097)
	tests := []struct {
		name string
		got  []byte
		want string
	}{
		{"nothing", Success(json.RawMessage("5"), nil), `{"seq_id":5,"code":0,"message":"success","data":{},"chunk_status":"continue"}`},
		{"no seq", Success(nil, nil), `{"seq_id":-1,"code":0,"message":"success","data":{},"chunk_status":"continue"}`},
		{"nil map", Success(json.RawMessage("5"), map[string]int(nil)), `{"seq_id":5,"code":0,"message":"success","data":{},"chunk_status":"continue"}`},
		{"no HTML", Success(json.RawMessage("1.0"), map[string]string{"a": "<&>\xff"}), `{"seq_id":1.0,"code":0,"message":"success","data":{"a":"<&>\ufffd"},"chunk_status":"continue"}`},
		{"error", Failure(json.RawMessage("5"), boxErr("session %s not found", "x")),
			`{"seq_id":5,"code":1,"message":"BoxSessionNotFoundError: session x not found","data":{},"chunk_status":"continue"}`},
		{"wrapped", Failure(json.RawMessage("5"), fmt.Errorf("doing: %w", boxErr("x"))),
			`{"seq_id":5,"code":1,"message":"BoxSessionNotFoundError: x","data":{},"chunk_status":"continue"}`},
		{"any other", Failure(json.RawMessage("5"), errors.New("disk on fire")),
			`{"seq_id":5,"code":1,"message":"BoxError: disk on fire","data":{},"chunk_status":"continue"}`},
		{"no class", Failure(json.RawMessage("5"), &Error{Text: "busy"}),
			`{"seq_id":5,"code":1,"message":"busy","data":{},"chunk_status":"continue"}`},
		{"4096 characters", Failure(json.RawMessage("5"), boxErr("%s", long[2:])),
			`{"seq_id":5,"code":1,"message":"BoxSessionNotFoundError: ` + long[2:] + `","data":{},"chunk_status":"continue"}`},
		{"4097 characters", Failure(json.RawMessage("5"), boxErr("%s", long)),
			`{"seq_id":5,"code":1,"message":"BoxSessionNotFoundError: ` + long[2:] + `... [protocol error truncated]","data":{},"chunk_status":"continue"}`},
		{"not JSON", Success(json.RawMessage("5"), map[string]any{"a": func() {}}),
			`{"seq_id":5,"code":1,"message":"BoxError: encoding the reply: json: unsupported type: func()","data":{},"chunk_status":"continue"}`},
	}
	for _, tt := range tests {
		if string(tt.got) != tt.want {
			t.Errorf("%s:\n%s\nwant\n%s", tt.name, tt.got, tt.want)
		}
	}
	big := Success(json.RawMessage("5"), map[string]string{"a": strings.Repeat("x", MaxMessage)})
	if len(big) > 1000 || !bytes.Contains(big, []byte(`"code":1,"message":"BoxError: the reply has 167`)) {
		t.Errorf("a reply above the limit became %.200q", big)
	}
}

// seen returns the class that a client finds in a message.
func seen(message string) string {
	for _, c := range [...]Class{Admission, Readiness, CapacityExceeded, BoxValidation, SessionNotFound, SessionConflict,
		ManagedProcessNotFound, ManagedProcessConflict, BackendUnavailable} {
		if strings.Contains(message, string(c)+":") {
			return string(c)
		}
	}
	return "BoxError"
}

var allClasses = []Class{Admission, Readiness, CapacityExceeded, BoxValidation, SessionNotFound, SessionConflict, ManagedProcessNotFound,
	ManagedProcessConflict, BackendUnavailable, BoxError, RuntimeUnavailable, PermissionError, ValueError, KeyError, validation}

func TestTextDoesNotChooseTheClass(t *testing.T) {
	for _, raised := range allClasses {
		for _, quoted := range allClasses {
			for _, text := range []string{"%s: x", "a %s:%[1]s:", "Box%s:", strings.Repeat("y", 4090) + "%s:", "BoxAdmissionBoxAdmissionError:Error: %s:"} {
				checkClass(t, raised, fmt.Sprintf(text, quoted))
			}
		}
	}
}

func checkClass(t *testing.T, c Class, text string) {
	t.Helper()
	var r struct{ Message string }
	if err := json.Unmarshal(Failure(json.RawMessage("1"), &Error{c, text}), &r); err != nil {
		t.Fatal(err)
	}
	if got, want := seen(r.Message), seen(string(c)+":"); got != want {
		t.Errorf("%s with text %q: client sees %s", c, text, got)
	}
}

func FuzzFailure(f *testing.F) {
	f.Add(0, "BoxAdmissionError: x")
	f.Add(11, "BoxReadinessBoxReadinessError:Error:")
	f.Fuzz(func(t *testing.T, class int, text string) {
		checkClass(t, allClasses[uint(class)%uint(len(allClasses))], text)
	})
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"seq_id":1,"action":"a","data":{"x":"\ud83d\ude00"},"context":{"instance_uuid":"i","workspace_uuid":"w","placement_generation":"1_0"}}`))
	f.Add([]byte(`{"seq_id":-1.5e3,"action":"","data":{},"context":{}}`))
	f.Add([]byte(`{"a":[1,[],{},{"b":NaN}],"action":null}`))
	f.Add([]byte(`[`))
	f.Fuzz(func(t *testing.T, msg []byte) {
		r, err := Parse(msg)
		var top map[string]json.RawMessage
		if json.Unmarshal(msg, &top) == nil { // messages that both accept mean the same to both
			compare(t, msg, top, r, err)
		}
		if errors.Is(err, ErrIgnore) {
			return
		}
		var e *Error
		if err != nil && !errors.As(err, &e) {
			t.Fatalf("error of another kind: %v", err)
		}
		if !json.Valid(Success(r.Seq, nil)) || !json.Valid(Failure(r.Seq, errors.New(""))) {
			t.Fatalf("reply with seq %q is no JSON", r.Seq)
		}
		if err == nil && r.Data[0] != '{' {
			t.Fatalf("data is %q", r.Data)
		}
		if c := r.Context; err == nil && c != nil && (c.Instance == "" || c.Workspace == "" || c.Generation < 1) {
			t.Fatalf("context %+v", c)
		}
	})
}

func compare(t *testing.T, msg []byte, top map[string]json.RawMessage, r Request, err error) {
	_, answer := top["code"]
	_, action := top["action"]
	if ignored := errors.Is(err, ErrIgnore); !utf8.Valid(msg) {
		return // encoding/json does not compare names byte by byte
	} else if ignored != (answer || !action) {
		t.Fatalf("ignored: %v; code %v, action %v", ignored, answer, action)
	}
	if err != nil {
		return
	}
	var name string
	if json.Unmarshal(top["action"], &name) != nil || name != r.Action {
		t.Fatalf("action %q, want %q", r.Action, name)
	}
	if !bytes.Equal(bytes.TrimSpace(top["data"]), r.Data) || !bytes.Equal(bytes.TrimSpace(top["seq_id"]), r.Seq) {
		t.Fatalf("data %s, seq %s", r.Data, r.Seq)
	}
}

func BenchmarkExec(b *testing.B) {
	msg := []byte(`{"seq_id": 67848, "action": "box_exec", "data": {"cmd": "echo kept > /workspace/kept.txt", "workdir": "/workspace", "timeout_sec": 30, "network": "off", "session_id": "lbc_session", "env": {}, "image": "rockchin/langbot-sandbox:latest", "host_path": null, "host_path_mode": "rw", "mount_path": "/workspace", "extra_mounts": [], "skill_name": null, "persistent": false, "cpus": 1.0, "memory_mb": 512, "pids_limit": 128, "read_only_rootfs": true, "workspace_quota_mb": 0}, "context": {"instance_uuid": "lbc-instance", "workspace_uuid": "lbc-workspace", "placement_generation": 1}}`)
	code := 0
	b.ReportAllocs()
	for b.Loop() {
		r, err := Parse(msg)
		if err != nil {
			b.Fatal(err)
		}
		s, err := ParseBoxSpec(r.Data, true)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := r.Context.Physical(s.SessionID); err != nil {
			b.Fatal(err)
		}
		Success(r.Seq, &ExecutionResult{SessionID: s.SessionID, BackendName: "boxd", Status: Completed, ExitCode: &code, Stdout: "out-42\n0\n/workspace", DurationMS: 8})
	}
}
