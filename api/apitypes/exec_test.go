package apitypes

import (
	"encoding/json"
	"testing"
)

func TestOutput(t *testing.T) {
	r := ExecResult{Stdout: "text", StderrBase64: []byte{0xff}}
	if string(r.Out()) != "text" || string(r.Err()) != "\xff" {
		t.Errorf("%q, %q", r.Out(), r.Err())
	}
	if b, err := json.Marshal(ExecResult{}); err != nil || string(b[:18]) != `{"exit_code":null,` {
		t.Errorf("%s, %v", b, err)
	}
}
