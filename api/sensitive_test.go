package api

import (
	"testing"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/policy"
)

// What is sensitive is shown everywhere, spreads by copies, and is never taken back.
func TestSensitive(t *testing.T) {
	source := t.TempDir()
	f := serve(t, func(o *Options, p *policy.Config) { p.AllowedMountRoots = []string{source} })
	c, ctx, on, off := f.client(), t.Context(), true, false
	sensitive := func(id string) bool {
		t.Helper()
		s, err := c.Session(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		return s.Sensitive != nil
	}
	made, err := c.Ensure(ctx, apitypes.SessionRequest{ID: "a", SessionSpec: apitypes.SessionSpec{LiveWishes: apitypes.LiveWishes{Sensitive: &on}}})
	if err != nil || made.Sensitive == nil || made.Sensitive.Reason == "" || made.Network {
		t.Fatalf("%+v, %v", made, err)
	}
	ensure(t, c, "b")
	ensure(t, c, "c")
	growTree(t, source, "file x")
	if _, err := c.CopyFiles(ctx, "b", apitypes.CopyRequest{Path: source, From: source + "/none", FromSession: "c"}); err == nil || sensitive("b") {
		t.Errorf("a copy from another session: %v", err)
	}
	// It counts before the first byte, so also if there is none in the end.
	if _, err := c.CopyFiles(ctx, "b", apitypes.CopyRequest{Path: source, From: source + "/none", FromSession: "a"}); err == nil || !sensitive("b") {
		t.Errorf("a copy from a sensitive session: %v", err)
	}
	for _, w := range []apitypes.LiveWishes{{Sensitive: &off}, {Network: &on}} {
		if _, err := c.Update(ctx, "b", apitypes.SessionUpdate{LiveWishes: w}); !client.IsCode(err, apitypes.CodeDenied) {
			t.Errorf("%+v: %v", w, err)
		}
	}
	if _, err := c.Update(ctx, "c", apitypes.SessionUpdate{LiveWishes: apitypes.LiveWishes{Sensitive: &on}, Attach: []apitypes.Mount{{Source: source, Target: "/x"}}}); err != nil || !sensitive("c") {
		t.Error(err)
	}
	if list, err := c.SensitivePaths(ctx); err != nil || len(list) != 1 || list[0].Path != source || list[0].Tenant == "" || list[0].Reason == "" {
		t.Errorf("%+v, %v", list, err)
	}
	if err := c.ForgetSensitivePath(ctx, source); !client.IsCode(err, apitypes.CodeState) {
		t.Errorf("a path in use: %v", err)
	}
	if err := c.Remove(ctx, "c"); err != nil {
		t.Fatal(err)
	}
	if err := c.ForgetSensitivePath(ctx, source); err != nil {
		t.Error(err)
	}
	if err := c.ForgetSensitivePath(ctx, source); !client.IsCode(err, apitypes.CodeNotFound) {
		t.Errorf("a path that is forgotten: %v", err)
	}
	if err := c.ForgetSensitivePath(ctx, ""); !client.IsCode(err, apitypes.CodeInvalid) {
		t.Errorf("no path: %v", err)
	}

	v, err := c.CreateVolume(ctx, apitypes.VolumeRequest{Name: "data", Size: 8 << 20})
	if err != nil || v.Sensitive != nil {
		t.Fatalf("%+v, %v", v, err)
	}
	if v, err = c.ResizeVolume(ctx, "data", apitypes.VolumeUpdate{Sensitive: &off, Size: 9 << 20}); err != nil || v.Sensitive != nil {
		t.Errorf("%+v, %v", v, err)
	}
	if v, err = c.MarkVolume(ctx, "data"); err != nil || v.Sensitive == nil || v.Size != 9<<20 {
		t.Errorf("%+v, %v", v, err)
	}
	if v, err = c.ResizeVolume(ctx, "data", apitypes.VolumeUpdate{Sensitive: &on, Size: 10 << 20}); err != nil || v.Sensitive == nil || v.Size != 10<<20 {
		t.Errorf("%+v, %v", v, err)
	}
	if _, err := c.ResizeVolume(ctx, "data", apitypes.VolumeUpdate{Sensitive: &off}); !client.IsCode(err, apitypes.CodeDenied) {
		t.Error(err)
	}
	if _, err := c.ResizeVolume(ctx, "data", apitypes.VolumeUpdate{}); !client.IsCode(err, apitypes.CodeInvalid) {
		t.Error(err)
	}
	if v, err := c.CreateVolume(ctx, apitypes.VolumeRequest{Name: "more", Size: 8 << 20, Sensitive: true}); err != nil || !v.Created || v.Sensitive == nil {
		t.Errorf("%+v, %v", v, err)
	}
	if list, err := c.Volumes(ctx); err != nil || len(list) != 2 || list[0].Sensitive == nil {
		t.Errorf("%+v, %v", list, err)
	}
	if _, err := c.MarkVolume(ctx, "none"); !client.IsCode(err, apitypes.CodeVolumeNotFound) {
		t.Error(err)
	}
}
