package bridge

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// Numbers of our own requests. Clients begin with a small number and count up, and -1
// is the answer to what has none.
const (
	seqInit     = "-7206452991318204801"
	seqShutdown = "-7206452991318204802"
)

func ownRequest(seq, action string, data json.RawMessage) []byte {
	return fmt.Appendf(nil, `{"seq_id":%s,"action":%q,"data":%s}`, seq, action, data)
}

// ownAnswer says whether msg is the answer to one of our own requests, and what it
// says.
func ownAnswer(seq string, msg []byte) (code int, text string, ok bool) {
	if !bytes.Contains(msg, []byte(seq)) {
		return 0, "", false
	}
	var answer struct {
		Seq     json.RawMessage `json:"seq_id"`
		Code    int             `json:"code"`
		Message string          `json:"message"`
	}
	if json.Unmarshal(msg, &answer) != nil || string(answer.Seq) != seq {
		return 0, "", false
	}
	return answer.Code, answer.Message, true
}
