package native

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native/rpc"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/testutil"
)

// startStorageService runs a launcher service with a data directory and returns a bare
// connection to it.
func startStorageService(t *testing.T) (conn *wire.Conn, data string) {
	t.Helper()
	testutil.RequireRoot(t)
	_, initPath := testutil.BuildBinaries(t)
	state, err := os.MkdirTemp("/run", "boxd-hostile-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(state) })
	data = filepath.Join(t.TempDir(), "volumes")
	if err := os.Chmod(state, 0o711); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	socket, err := StartLauncher(ctx, LauncherOptions{InitPath: initPath, StateDir: state, DataDir: data})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		s, err := Connect(ctx, ServiceOptions{Socket: socket})
		if err == nil {
			err = s.Stop(ctx, true)
		}
		if err != nil {
			t.Error(err)
		}
	})
	if conn, err = dialService(ctx, socket); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn, data
}

// The launcher itself checks every request, as if no one had checked it before.
func TestHostileStorageRequests(t *testing.T) {
	conn, data := startStorageService(t)
	id := uint32(0)
	ask := func(typ byte, body string) error {
		t.Helper()
		id++
		if err := conn.Send(typ, id, []byte(body)); err != nil {
			t.Fatal(err)
		}
		frame, err := conn.Receive()
		if err != nil {
			t.Fatalf("%d %s: the launcher is gone: %v", typ, body, err)
		}
		files := frame.Files()
		linux.CloseAll(files)
		var reply rpc.Reply
		if err := json.Unmarshal(frame.Body, &reply); err != nil || frame.ID != id {
			t.Fatalf("%d %s: answer %q, %v", typ, body, frame.Body, err)
		}
		if reply.Error == nil {
			return nil
		}
		if len(files) > 0 {
			t.Errorf("%d %s: %d descriptors with an error", typ, body, len(files))
		}
		return reply.Error
	}
	ask(rpc.TypeMakeVolume, `{"Volume":{"name":"v","bytes":2097152}}`)
	names := []string{``, `.`, `..`, `../v`, `/v`, `v/../v`, `V`, `v.img`, `v\u0000`, `-v`, strings.Repeat("v", 65), `v\n`}
	for _, name := range names {
		for typ, body := range map[byte]string{
			rpc.TypeMakeVolume:     `{"Volume":{"name":"` + name + `","bytes":2097152}}`,
			rpc.TypeRemoveVolume:   `{"Name":"` + name + `"}`,
			rpc.TypeCopyVolume:     `{"From":"v","Volume":{"name":"` + name + `"}}`,
			rpc.TypeOpenDirectory:  `{"Directory":{"Volume":"` + name + `","Path":"/","Make":true}}`,
			rpc.TypeCreate:         `{"Spec":{"id":"b","mounts":[{"source":"/","target":"/x","volume":"` + name + `"}]}}`,
			rpc.TypeLimitDirectory: `{"Directory":{"Volume":"` + name + `","Path":"/"},"Bytes":1}`,
			rpc.TypeMakeLayer:      `{"Name":"` + name + `"}`,
			rpc.TypeAbandonLayer:   `{"Name":"` + name + `"}`,
			rpc.TypePublishLayer:   `{"Name":"a","ID":"` + name + `"}`,
			rpc.TypeRemoveLayer:    `{"ID":"` + name + `"}`,
		} {
			if err := ask(typ, body); !errors.Is(err, engine.ErrInvalid) {
				t.Errorf("request %d, name %q: %v", typ, name, err)
			}
		}
	}
	for _, c := range []struct {
		typ  byte
		body string
	}{
		{rpc.TypeMakeVolume, `{"Volume":{"name":"w","bytes":-1}}`},
		{rpc.TypeMakeVolume, `{"Volume":{"name":"w","bytes":9223372036854775807}}`},
		{rpc.TypeMakeVolume, `{"Volume":{"name":"w","bytes":2097152,"inodes":-1}}`},
		{rpc.TypeMakeVolume, `{"Volume":{"name":"w","bytes":2097152,"inodes":9223372036854775807}}`},
		{rpc.TypeMakeVolume, `{}`},
		{rpc.TypeCopyVolume, `{"From":"../v","Volume":{"name":"w"}}`},
		{rpc.TypeCopyVolume, `{"From":"v","Volume":{"name":"v"}}`},
		{rpc.TypeCopyVolume, `{"From":"none","Volume":{"name":"w"}}`},
		{rpc.TypeCopyVolume, `{"From":"v","Volume":{"name":"w","bytes":1048576}}`},
		{rpc.TypeOpenDirectory, `{"Directory":{"Path":"/tmp"}}`},
		{rpc.TypeOpenDirectory, `{"Directory":{"Path":"tmp","Within":"/"}}`},
		{rpc.TypeOpenDirectory, `{"Directory":{"Path":"/tmp","Within":"tmp"}}`},
		{rpc.TypeOpenDirectory, `{"Directory":{"Path":"/tmp/../etc","Within":"/tmp"}}`},
		{rpc.TypeOpenDirectory, `{"Directory":{"Path":"/tmp/../etc/x","Within":"/tmp","Make":true}}`},
		{rpc.TypeOpenDirectory, `{"Directory":{"Path":"/tmp","Within":"/tmp/.."}}`},
		{rpc.TypeOpenDirectory, `{"Directory":{"Path":"/../etc","Volume":"v"}}`},
		{rpc.TypeOpenDirectory, `{"Directory":{"Path":"/","Within":"/","Volume":"v"}}`},
		{rpc.TypeOpenDirectory, `{"Directory":{"Path":"/a\u0000b","Within":"/"}}`},
		{rpc.TypeOpenDirectory, `{"Directory":{"Path":"/` + strings.Repeat("x/", 3000) + `","Within":"/"}}`},
		{rpc.TypeLimitDirectory, `{"Directory":{"Path":"/etc","Within":"/"},"Bytes":1}`},
		{rpc.TypeLimitDirectory, `{"Directory":{"Path":"/","Within":"/"},"Bytes":1}`},
		{rpc.TypeLimitDirectory, `{"Directory":{"Path":"/tmp","Within":"/"},"Bytes":-1}`},
		{rpc.TypeLimitDirectory, `{"Directory":{"Path":"` + data + `","Within":"/"},"Bytes":1}`},
		{rpc.TypeLimitDirectory, `{"Directory":{"Path":"/","Volume":"v"},"Bytes":1048576}`},
		{rpc.TypeCreate, `{"Spec":{"id":"b","mounts":[{"source":"/../etc","target":"/x","volume":"v"}]}}`},
		{rpc.TypeCreate, `{"Spec":{"id":"b","mounts":[{"source":"/","target":"/x","volume":"v","within":"/"}]}}`},
		{rpc.TypeCreate, `{"Spec":{"id":"b","mounts":[{"source":"` + data + `","target":"/x"}]}}`},
	} {
		if err := ask(c.typ, c.body); !errors.Is(err, engine.ErrInvalid) {
			t.Errorf("request %d %.100s: %v", c.typ, c.body, err)
		}
	}
	for _, typ := range []byte{rpc.TypeMakeVolume, rpc.TypeRemoveVolume, rpc.TypeVolumes, rpc.TypeOpenDirectory, rpc.TypeLimitDirectory, rpc.TypeCopyVolume,
		rpc.TypeMakeLayer, rpc.TypeAbandonLayer, rpc.TypePublishLayer, rpc.TypeRemoveLayer, rpc.TypeLayers} {
		for _, body := range []string{``, `null x`, `[]`, `{"Name":1,"Volume":1,"After":1,"Directory":1}`, `{"Volume":[`, "\xff"} {
			if err := ask(typ, body); err == nil {
				t.Errorf("request %d %q: no error", typ, body)
			}
		}
	}
	if err := ask(rpc.TypeRemoveVolume, `{"Name":"v"}`); err != nil {
		t.Errorf("the good volume: %v", err)
	}
	if err := ask(rpc.TypeList, `{}`); err != nil {
		t.Error(err)
	}
	list, err := os.ReadDir(data)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		if strings.HasPrefix(e.Name(), "v") || strings.HasPrefix(e.Name(), "w") {
			t.Errorf("left in the data directory: %s", e.Name())
		}
	}
}
