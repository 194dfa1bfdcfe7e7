package images

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

func TestRunConfig(t *testing.T) {
	for _, c := range []struct {
		config v1.Config
		says   string
	}{
		{v1.Config{Env: []string{"A"}}, "NAME=VALUE"},
		{v1.Config{Env: []string{"=a"}}, "NAME=VALUE"},
		{v1.Config{Env: []string{"A=\x00"}}, "NUL"},
		{v1.Config{Env: []string{"A\n=b"}}, "NAME=VALUE"},
		{v1.Config{Cmd: []string{"a\x00b"}}, "NUL"},
		{v1.Config{Entrypoint: []string{"\x00"}}, "NUL"},
		{v1.Config{User: "root\nx"}, "user"},
		{v1.Config{WorkingDir: "/a\x00"}, "working directory"},
		{v1.Config{WorkingDir: "/" + strings.Repeat("a", 5000)}, "4095"},
		{v1.Config{StopSignal: "\x1b[2J"}, "stop signal"},
		{v1.Config{Env: []string{"A=" + strings.Repeat("a", maxRunConfig)}}, "bytes, more than"},
		{v1.Config{Volumes: map[string]struct{}{strings.Repeat("a", maxRunConfig): {}}}, "bytes, more than"},
	} {
		if _, err := runConfig(&v1.ConfigFile{Config: c.config}); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), c.says) || strings.ContainsAny(err.Error(), "\n\x1b\x00") {
			t.Errorf("%v, want %q", err, c.says)
		}
	}
	got, err := runConfig(&v1.ConfigFile{Config: v1.Config{Env: []string{"A=b\nc"}, WorkingDir: "../../proc/self/fd/7", ExposedPorts: map[string]struct{}{"80/tcp": {}},
		Labels: map[string]string{"l": strings.Repeat("a", maxLabels)}}})
	if err != nil || len(got.Labels) > 0 || got.WorkingDir != "/proc/self/fd/7" || got.Ports[0] != "80/tcp" {
		t.Errorf("%+v, %v", got, err)
	}
}

func FuzzManifest(f *testing.F) {
	f.Add([]byte(`{"schemaVersion":2,"config":{"digest":"sha256:`+strings.Repeat("a", 64)+`","size":3},"layers":[]}`), []byte(`{"os":"linux","rootfs":{"diff_ids":[]}}`))
	img := randomImage(f, 10, 2)
	m, _ := img.RawManifest()
	c, _ := img.RawConfigFile()
	f.Add(m, c)
	f.Add([]byte(`{"schemaVersion":2,"manifests":[{"platform":{"os":"linux","architecture":"amd64"}}]}`), []byte(`{}`))
	f.Fuzz(func(t *testing.T, manifest, config []byte) {
		in := &incoming{}
		if d, err := parseDocument(manifest); err == nil && d.Config == nil {
			choose(hostPlatform, d.Manifests)
		}
		if err := in.describe(manifest, config, hostPlatform); err != nil {
			return
		}
		if len(in.layers) == 0 || len(in.layers) != len(in.chain) || in.totalBytes < 0 {
			t.Errorf("%+v", in)
		}
		for _, l := range in.layers {
			if strings.Contains(l.Digest.Hex, "/") || l.Size < 0 {
				t.Errorf("layer %+v", l)
			}
		}
		if text, err := json.Marshal(in.run); err != nil || bytes.ContainsRune([]byte(in.run.User+in.run.WorkingDir), 0) {
			t.Errorf("%s, %v", text, err)
		}
	})
}

func TestPlatformRank(t *testing.T) {
	for _, c := range []struct {
		want, got string
		suits     bool
	}{
		{"linux/amd64/v3", "linux/amd64", true}, {"linux/amd64/v3", "linux/amd64/v2", true}, {"linux/amd64/v3", "linux/amd64/v4", false},
		{"linux/amd64/v1", "linux/amd64/v2", false}, {"linux/amd64/v1", "linux/amd64", true}, {"linux/arm64/", "linux/arm64/v8", true},
		{"linux/arm64/v8", "linux/arm64", true}, {"linux/arm64", "linux/arm64/v9", false}, {"linux/arm/v6", "linux/arm/v7", false},
		{"linux/amd64", "windows/amd64", false}, {"linux/amd64/v1", "linux/amd64/", true},
	} {
		part := func(s string) v1.Platform {
			parts := append(strings.Split(s, "/"), "")
			return v1.Platform{OS: parts[0], Architecture: parts[1], Variant: parts[2]}
		}
		if got := rank(part(c.want), part(c.got)) > 0; got != c.suits {
			t.Errorf("%s for %s: %v", c.got, c.want, got)
		}
	}
}
