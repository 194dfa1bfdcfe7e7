package api

import (
	"slices"
	"testing"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
)

func TestVolumeSnapshot(t *testing.T) {
	f := serve(t, nil)
	c, ctx := f.client(), t.Context()
	if _, err := c.CreateVolume(ctx, apitypes.VolumeRequest{Name: "data", Size: 8 << 20}); err != nil {
		t.Fatal(err)
	}
	for _, size := range []apitypes.Size{0, 8 << 20} { // the second time it is there
		v, err := c.CreateVolume(ctx, apitypes.VolumeRequest{Name: "copy", From: "data", Size: size})
		if err != nil || v.Created != (size == 0) || v.From != "data" || v.Size != 8<<20 {
			t.Errorf("%+v, %v", v, err)
		}
	}
	if _, err := c.CreateVolume(ctx, apitypes.VolumeRequest{Name: "data", From: "copy"}); !client.IsCode(err, apitypes.CodeVolumeExists) {
		t.Error(err)
	}
	if _, err := c.CreateVolume(ctx, apitypes.VolumeRequest{Name: "x", From: "none"}); !client.IsCode(err, apitypes.CodeVolumeNotFound) {
		t.Error(err)
	}
	ask := apitypes.SessionRequest{ID: "a", SessionSpec: apitypes.SessionSpec{Volumes: []apitypes.SessionVolume{{Name: "data", Target: "/data"}}}}
	if _, err := c.Ensure(ctx, ask); err != nil {
		t.Fatal(err)
	}
	if _, err := c.CreateVolume(ctx, apitypes.VolumeRequest{Name: "x", From: "data"}); !client.IsCode(err, apitypes.CodeVolumeInUse) {
		t.Error(err)
	}
}

func TestVolumes(t *testing.T) {
	f := serve(t, nil)
	c, ctx := f.client(), t.Context()
	v, err := c.CreateVolume(ctx, apitypes.VolumeRequest{Name: "data", Size: 8 << 20})
	if err != nil || !v.Created || v.Size != 8<<20 || v.State != apitypes.VolumeReady {
		t.Fatalf("%+v, %v", v, err)
	}
	if v, err := c.CreateVolume(ctx, apitypes.VolumeRequest{Name: "data", Size: 8 << 20}); err != nil || v.Created {
		t.Errorf("%+v, %v", v, err)
	}
	if _, err := c.CreateVolume(ctx, apitypes.VolumeRequest{Name: "data", Size: 9 << 20}); !client.IsCode(err, apitypes.CodeVolumeExists) {
		t.Error(err)
	}
	if _, err := c.CreateVolume(ctx, apitypes.VolumeRequest{Name: "data"}); !client.IsCode(err, apitypes.CodeInvalid) {
		t.Error(err)
	}
	want := apitypes.AttachedVolume{Name: "data", Target: "/data", ReadOnly: true}
	ask := apitypes.SessionRequest{ID: "a", SessionSpec: apitypes.SessionSpec{Volumes: []apitypes.SessionVolume{{Name: "data", Target: "/data", ReadOnly: true}}}}
	if s, err := c.Ensure(ctx, ask); err != nil || !slices.Equal(s.Volumes, []apitypes.AttachedVolume{want}) || len(s.Mounts) != 0 {
		t.Fatalf("%+v, %v", s, err)
	}
	ask.ID, ask.Volumes[0].ReadOnly = "b", false
	if _, err := c.Ensure(ctx, ask); !client.IsCode(err, apitypes.CodeVolumeInUse) {
		t.Error(err)
	}
	ask.Volumes[0].Name = "none"
	if _, err := c.Ensure(ctx, ask); !client.IsCode(err, apitypes.CodeInvalid) {
		t.Error(err)
	}
	if err := c.RemoveVolume(ctx, "data"); !client.IsCode(err, apitypes.CodeVolumeInUse) {
		t.Error(err)
	}
	if v, err := c.ResizeVolume(ctx, "data", apitypes.VolumeUpdate{Size: 9 << 20}); err != nil || v.Size != 9<<20 {
		t.Errorf("%+v, %v", v, err)
	}
	if list, err := c.Volumes(ctx); err != nil || len(list) != 1 || !slices.Equal(list[0].Attached, []apitypes.Attachment{{Session: "a", ReadOnly: true}}) {
		t.Errorf("%+v, %v", list, err)
	}
	s, err := c.Update(ctx, "a", apitypes.SessionUpdate{Detach: []string{"/data"}})
	if err != nil || len(s.Volumes) != 0 {
		t.Errorf("%+v, %v", s, err)
	}
	if err := c.RemoveVolume(ctx, "data"); err != nil {
		t.Error(err)
	}
	_, looked := c.Volume(ctx, "data")
	_, resized := c.ResizeVolume(ctx, "data", apitypes.VolumeUpdate{Size: 8 << 20})
	for _, err := range []error{c.RemoveVolume(ctx, "data"), looked, resized} {
		if !client.IsCode(err, apitypes.CodeVolumeNotFound) {
			t.Error(err)
		}
	}
}
