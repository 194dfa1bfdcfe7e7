package spec

import (
	"encoding/json"
	"testing"
)

func TestParsePublish(t *testing.T) {
	for text, want := range map[string]PublishWish{
		"8000": {Port: 8000}, "auto:8000": {Port: 8000}, "20080:80": {Port: 80, Host: 20080}, "65535:65535": {Port: 65535, Host: 65535},
	} {
		if got, err := ParsePublish(text); err != nil || got != want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", ":", ":80", "80:", "0", "0:80", "80:0", "65536", "-1", "+80", "80/tcp", "127.0.0.1:80:80", "1:2:3", "Auto:80", " 80"} {
		if got, err := ParsePublish(text); err == nil {
			t.Errorf("%q: %+v", text, got)
		}
	}
}

func TestPublishJSON(t *testing.T) {
	for text, want := range map[string]PublishWish{
		`{"port":80}`: {Port: 80}, `{"port":80,"host":"auto"}`: {Port: 80}, `{"port":80,"host":20080}`: {Port: 80, Host: 20080}, `{"port":80,"host":"20080"}`: {Port: 80, Host: 20080},
	} {
		var got PublishWish
		if err := json.Unmarshal([]byte(text), &got); err != nil || got != want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
		again, err := json.Marshal(got)
		if err == nil {
			err = json.Unmarshal(again, &got)
		}
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v", again, got, err)
		}
	}
	for _, text := range []string{`{"host":0}`, `{"host":-1}`, `{"host":65536}`, `{"host":1.5}`, `{"host":"none"}`, `{"host":true}`, `{"host":[1]}`} {
		var got PublishWish
		if err := json.Unmarshal([]byte(text), &got); err == nil {
			t.Errorf("%s: %+v", text, got)
		}
	}
}
