package langbot

import (
	"os"
	"testing"
)

// A workspace that LangBot keeps in a directory of the host stays sensitive, whichever session has
// it later, and so does every session that shares it.
func TestSensitiveWorkspace(t *testing.T) {
	b := open(t)
	b.stop()
	b.secret = []string{b.path("shared/secret")}
	if err := os.Mkdir(b.secret[0], 0o755); err != nil {
		t.Fatal(err)
	}
	b.start()
	kept := object{"host_path": b.path("shared/kept")}
	sensitive := func() (n int) {
		for _, v := range b.sessions.List("") {
			if v.Sensitive != nil {
				n++
			}
		}
		return n
	}
	b.call("box_create_session", specOf("a", kept))
	b.call("box_create_session", specOf("b", kept))
	b.call("box_create_session", specOf("c", nil))
	if n := sensitive(); n != 0 {
		t.Fatalf("%d sessions are sensitive before", n)
	}
	b.call("box_create_session", specOf("a", object{"host_path": b.path("shared/kept"), "extra_mounts": []object{{"host_path": b.secret[0], "mount_path": "/secret", "mode": "ro"}}}))
	if n := sensitive(); n != 2 {
		t.Errorf("%d sessions are sensitive, want a and b", n)
	}
	for _, id := range []string{"a", "b"} {
		b.call("box_delete_session", object{"session_id": id})
	}
	b.stop()
	b.start()
	b.call("box_create_session", specOf("later", kept))
	list := b.sessions.List("")
	if n := sensitive(); n != 1 || len(list) != 2 {
		t.Errorf("%d of %d sessions are sensitive, want the one on the kept workspace", n, len(list))
	}
	for _, v := range list {
		if err := b.sessions.MayHaveNetwork(v.Key); v.Sensitive != nil && err == nil {
			t.Errorf("session %s may have a network", v.ID)
		}
	}
	if paths := b.sessions.SensitivePaths(); len(paths) != 1 || paths[0].Path != b.path("shared/kept") {
		t.Errorf("%+v", paths)
	}
}
