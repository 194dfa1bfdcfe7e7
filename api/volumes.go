package api

import (
	"errors"
	"net/http"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
	"github.com/boxd/boxd/session"
)

// onVolume is the handler of a route about one volume, of the tenant that it gets.
func onVolume(handle func(c *call, tenant string) error) func(*call) error {
	return func(c *call) error {
		tenant, err := c.oneTenant()
		if err != nil {
			return err
		}
		err = handle(c, tenant)
		if errors.Is(err, session.ErrNotFound) {
			return &refusal{code: apitypes.CodeVolumeNotFound, detail: err.Error(), err: err}
		}
		return err
	}
}

func (c *call) listVolumes() error {
	list := apitypes.VolumeList{Volumes: []apitypes.Volume{}}
	for _, v := range c.s.opt.Sessions.Volumes(c.r.Context(), c.listTenant()) {
		list.Volumes = append(list.Volumes, volumeOf(v))
	}
	return c.reply(http.StatusOK, list)
}

func (c *call) createVolume(tenant string) error {
	var q apitypes.VolumeRequest
	if err := c.decode(&q); err != nil {
		return err
	}
	limits := session.VolumeLimits{Bytes: q.Size, Inodes: q.Inodes}
	var v session.VolumeView
	var err error
	if q.From != "" {
		v, err = c.s.opt.Sessions.SnapshotVolume(c.r.Context(), c.caller(), tenant, q.Name, q.From, limits)
	} else {
		v, err = c.s.opt.Sessions.CreateVolume(c.r.Context(), c.caller(), tenant, q.Name, limits)
	}
	if err == nil && q.Sensitive {
		created := v.Created
		v, err = c.s.opt.Sessions.MarkVolume(c.r.Context(), c.caller(), tenant, q.Name)
		v.Created = created
	}
	return c.replyVolume(v, err)
}

func (c *call) getVolume(tenant string) error {
	v, err := c.s.opt.Sessions.Volume(c.r.Context(), tenant, c.r.PathValue("name"))
	return c.replyVolume(v, err)
}

func (c *call) resizeVolume(tenant string) error {
	var q apitypes.VolumeUpdate
	if err := c.decode(&q); err != nil {
		return err
	}
	name := c.r.PathValue("name")
	mark := q.Sensitive != nil && *q.Sensitive
	var v session.VolumeView
	var err error
	if mark {
		v, err = c.s.opt.Sessions.MarkVolume(c.r.Context(), c.caller(), tenant, name)
	} else if q.Sensitive != nil {
		err = c.staysSensitive(tenant, name)
	}
	if err == nil && (!mark || q.Size != 0 || q.Inodes != 0) {
		v, err = c.s.opt.Sessions.ResizeVolume(c.r.Context(), c.caller(), tenant, name, session.VolumeLimits{Bytes: q.Size, Inodes: q.Inodes})
	}
	return c.replyVolume(v, err)
}

// staysSensitive refuses to take the mark off a volume.
func (c *call) staysSensitive(tenant, name string) error {
	v, err := c.s.opt.Sessions.Volume(c.r.Context(), tenant, name)
	if err == nil && v.Sensitive != nil {
		err = &policy.DeniedError{Field: "sensitive", Value: "false", Rule: "what has been sensitive stays so: remove the volume"}
	}
	return err
}

func (c *call) listSensitivePaths() error {
	list := apitypes.SensitivePathList{Paths: []apitypes.SensitivePath{}}
	for _, p := range c.s.opt.Sessions.SensitivePaths() {
		list.Paths = append(list.Paths, apitypes.SensitivePath(p))
	}
	return c.reply(http.StatusOK, list)
}

func (c *call) forgetSensitivePath() error {
	if c.query("path") == "" {
		return &engine.FieldError{Field: "path", Value: `""`, Rule: "must not be empty: name a path as the list has it"}
	}
	if err := c.s.opt.Sessions.ForgetSensitivePath(c.caller(), c.query("path")); err != nil {
		return err
	}
	return c.empty()
}

func (c *call) removeVolume(tenant string) error {
	if err := c.s.opt.Sessions.RemoveVolume(c.r.Context(), c.caller(), tenant, c.r.PathValue("name")); err != nil {
		return err
	}
	return c.empty()
}

func (c *call) replyVolume(v session.VolumeView, err error) error {
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, volumeOf(v))
}

func volumeOf(v session.VolumeView) apitypes.Volume {
	out := apitypes.Volume{Size: v.Bytes, State: apitypes.VolumeReady, Attached: []apitypes.Attachment{}}
	spec.CopyFields(&out, v)
	switch {
	case v.Removing:
		out.State = apitypes.VolumeRemoving
	case v.Lost:
		out.State = apitypes.VolumeLost
	}
	for _, a := range v.Attached {
		out.Attached = append(out.Attached, apitypes.Attachment(a))
	}
	return out
}
