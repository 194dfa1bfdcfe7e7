package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/policy"
)

var secret = strings.Repeat("s3", 16)

func TestLangbotDefaults(t *testing.T) {
	c := Default()
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	want := Langbot{Tenant: "langbot", Profile: "langbot", BackendName: "boxd", NetworkOn: "extended", TimeoutEnds: "session", SkillsSize: 256 << 20, MaxConnections: 1024}
	if !reflect.DeepEqual(c.Langbot, want) {
		t.Errorf("%+v, want %+v", c.Langbot, want)
	}
}

// TestLangbotEnvironment: the names that LangBot knows go before the file, and ours
// before them.
func TestLangbotEnvironment(t *testing.T) {
	file := "langbot: {instance_id: from-file, token_file: /t}\n"
	for name, test := range map[string]struct {
		env                   map[string]string
		token, init, instance string
	}{
		"none":  {nil, "", "", "from-file"},
		"empty": {map[string]string{"LANGBOT_BOX_CONTROL_TOKEN": "", "LANGBOT_BOX_CONFIG": "", "LANGBOT_BOX_TRUSTED_INSTANCE_UUID": ""}, "", "", "from-file"},
		"theirs": {map[string]string{"LANGBOT_BOX_CONTROL_TOKEN": secret, "LANGBOT_BOX_CONFIG": "{not json", "LANGBOT_BOX_TRUSTED_INSTANCE_UUID": "i1"},
			secret, "{not json", "i1"},
		"both": {map[string]string{"LANGBOT_BOX_TRUSTED_INSTANCE_UUID": "i1", "BOXD_LANGBOT_INSTANCE_ID": "i2"}, "", "", "i2"},
		"ours": {map[string]string{"BOXD_LANGBOT_INSTANCE_ID": "i2"}, "", "", "i2"},
	} {
		c, err := load(t, file, test.env)
		if l := c.Langbot; err != nil || l.Token != test.token || l.Init != test.init || l.InstanceID != test.instance || l.TokenFile != "/t" {
			t.Errorf("%s: %+v, %v", name, l, err)
		}
	}
	for _, key := range []string{"token", "init"} {
		if _, err := load(t, "langbot: {"+key+": x}\n", nil); err == nil || !strings.Contains(err.Error(), "unknown key") {
			t.Errorf("%s in the file: %v", key, err)
		}
	}
}

func TestLangbotListen(t *testing.T) {
	none := func(*Config) {}
	token := func(c *Config) { c.Langbot.Token = secret }
	file := func(c *Config) { c.Langbot.TokenFile = "/t" }
	tokens := func(c *Config) { c.TokensFile = "/t" } // of the other door
	for _, test := range []struct {
		listen string
		with   func(*Config)
		want   string // part of the error; empty: valid
	}{
		{"", none, ""},
		{"127.0.0.1:5410", none, ""},
		{"[::1]:0", none, ""},
		{"localhost:5410", none, ""},
		{"0.0.0.0:5410", none, "is open to other hosts"},
		{":5410", none, "is open to other hosts"},
		{"[::]:5410", none, "is open to other hosts"},
		{"10.0.0.1:5410", none, "is open to other hosts"},
		{"box.example.org:5410", none, "is open to other hosts"},
		{"0.0.0.0:5410", tokens, "is open to other hosts"},
		{"0.0.0.0:5410", token, ""},
		{"0.0.0.0:5410", file, ""},
		{"127.0.0.1", none, "must be HOST:PORT, such as 127.0.0.1:5410"},
		{"127.0.0.1:65536", none, "port"},
		{"127.0.0.1:05410", none, "port"},
		{"127.0.0.1:8420", func(c *Config) { c.Listen = "127.0.0.1:8420" }, "is that of listen"},
		{"127.0.0.1:0", func(c *Config) { c.Listen = "127.0.0.1:0" }, ""},
	} {
		c := Default()
		c.Langbot.Listen = test.listen
		test.with(&c)
		err := c.Validate()
		var bad *engine.FieldError
		if (test.want == "") != (err == nil) || (err != nil && (!strings.Contains(err.Error(), test.want) || !errors.As(err, &bad) || bad.Field != "langbot.listen")) {
			t.Errorf("%q: %v, want %q", test.listen, err, test.want)
		}
	}
}

func TestLangbotValues(t *testing.T) {
	roots := func(c *Config) { c.Policy.AllowedMountRoots = []string{"/srv/langbot"} }
	for i, test := range []struct {
		change func(*Config)
		field  string // empty: valid
	}{
		{func(c *Config) { c.Langbot.InstanceID = "a.b:c_d-9" }, ""},
		{func(c *Config) { c.Langbot.InstanceID = "-a" }, "langbot.instance_id"},
		{func(c *Config) { c.Langbot.InstanceID = "a b" }, "langbot.instance_id"},
		{func(c *Config) { c.Langbot.InstanceID = strings.Repeat("a", 129) }, "langbot.instance_id"},
		{func(c *Config) { c.Langbot.BackendName = "nsjail" }, ""},
		{func(c *Config) { c.Langbot.BackendName = "" }, "langbot.backend_name"},
		{func(c *Config) { c.Langbot.BackendName = "BoxValidationError: x" }, "langbot.backend_name"},
		{func(c *Config) { c.Langbot.NetworkOn = "refuse" }, ""},
		{func(c *Config) { c.Langbot.NetworkOn = "offline" }, ""},
		{func(c *Config) { c.Langbot.NetworkOn = "basic" }, ""},
		{func(c *Config) { c.Langbot.NetworkOn = "on" }, "langbot.network_on"},
		{func(c *Config) { c.Langbot.TimeoutEnds = "command" }, ""},
		{func(c *Config) { c.Langbot.TimeoutEnds = "" }, "langbot.timeout_ends"},
		{func(c *Config) { c.Langbot.SkillsSize = 0 }, "langbot.skills_size"},
		{func(c *Config) { c.Langbot.SkillsSize = -1 }, "langbot.skills_size"},
		{func(c *Config) { c.Langbot.SkillsSize = 1<<20 - 1 }, "langbot.skills_size"},
		{func(c *Config) { c.Langbot.SkillsInodes = 16 }, ""},
		{func(c *Config) { c.Langbot.SkillsInodes = 15 }, "langbot.skills_inodes"},
		{func(c *Config) { c.Langbot.SkillsInodes = 1 << 32 }, "langbot.skills_inodes"},
		{func(c *Config) { c.Langbot.MaxConnections = 0 }, "langbot.max_connections"},
		{func(c *Config) { c.Langbot.MaxConnections = 1<<20 + 1 }, "langbot.max_connections"},
		{func(c *Config) { c.Langbot.TokenFile = "t" }, "langbot.token_file"},
		{func(c *Config) { c.Langbot.Token = secret[1:] }, "LANGBOT_BOX_CONTROL_TOKEN"},
		{func(c *Config) { c.Langbot.Token = secret + " x" }, "LANGBOT_BOX_CONTROL_TOKEN"},
		{func(c *Config) { c.Langbot.Tenant = "" }, "langbot.tenant"},
		{func(c *Config) { c.Langbot.Tenant = "../x" }, "langbot.tenant"},
		{func(c *Config) { c.Langbot.Profile = "offline_readonly" }, ""},
		{func(c *Config) { c.Langbot.Profile = "network_basic" }, ""}, // each request decides about it
		{func(c *Config) {
			c.Policy.Profiles = map[string]policy.ProfileConfig{"langbot": {Locked: &[]string{"network_rules"}}}
			c.Langbot.NetworkOn = "basic"
		}, "langbot.network_on"},
		{func(c *Config) { c.Langbot.Profile = "" }, "langbot.profile"},
		{func(c *Config) { c.Langbot.Profile = "no" }, "langbot.profile"},
		{func(c *Config) {
			c.Policy.Tenants = map[string]policy.Tenant{"langbot": {Profiles: []string{"default"}}}
		}, "langbot.profile"},
		{func(c *Config) { c.Langbot.SkillsDir = "/srv/langbot/skills" }, "langbot.skills_dir"},
		{func(c *Config) { roots(c); c.Langbot.SkillsDir = "/srv/langbot/skills"; c.Langbot.SkillsSize = 0 }, ""},
		{func(c *Config) { roots(c); c.Langbot.SkillsDir = "/srv/langbot" }, ""},
		{func(c *Config) { roots(c); c.Langbot.SkillsDir = "/srv/langbot2" }, "langbot.skills_dir"},
		{func(c *Config) { roots(c); c.Langbot.SkillsDir = "/srv/langbot/../x" }, "langbot.skills_dir"},
		{func(c *Config) { roots(c); c.Langbot.SkillsDir = "skills" }, "langbot.skills_dir"},
		{func(c *Config) {
			roots(c)
			c.Langbot.SkillsDir = "/srv/langbot/skills"
			c.Policy.Tenants = map[string]policy.Tenant{"langbot": {AllowedMountRoots: &[]string{"/srv/other"}}}
		}, "langbot.skills_dir"},
		{func(c *Config) { c.Langbot.TokenFile = "/srv/langbot/secret"; roots(c) }, "allowed_mount_roots[0]"}, // no box may read it
	} {
		c := Default()
		test.change(&c)
		err := c.Validate()
		var bad *engine.FieldError
		switch {
		case test.field == "" && err != nil:
			t.Errorf("%d: %v, want nil", i, err)
		case test.field != "" && (!errors.As(err, &bad) || bad.Field != test.field || strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), secret[1:])):
			t.Errorf("%d: %v, want an error of %q", i, err, test.field)
		}
	}
}

// TestLangbotImage: the image of LangBot's profile has to be allowed only if LangBot has a listener.
func TestLangbotImage(t *testing.T) {
	const text = "allowed_images: [local/*]\nprofiles: {default: {image: local/python:1}%s}\n"
	for _, c := range []struct{ langbot, profile, want string }{
		{"", "", ""},
		{"langbot: {listen: 127.0.0.1:5410}\n", "", `profiles.langbot.image "host": tenant "langbot" may have`},
		{"langbot: {listen: 127.0.0.1:5410}\n", ", langbot: {image: local/python:1}", ""},
		{"langbot: {profile: none}\n", "", `langbot.profile "none"`},
		{"langbot: {image_names: {x: busybox}}\n", "", `langbot.image_names.x "docker.io/library/busybox:latest": tenant`},
	} {
		config, err := load(t, fmt.Sprintf(text, c.profile)+c.langbot, nil)
		if err == nil {
			err = config.Validate()
		}
		if (c.want == "") != (err == nil) || err != nil && (!strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n")) {
			t.Errorf("%q, %q: %v, want %q", c.langbot, c.profile, err, c.want)
		}
	}
}

func TestLangbotSecret(t *testing.T) {
	dir := t.TempDir()
	file := func(text string, mode os.FileMode) Langbot {
		path := filepath.Join(dir, "secret")
		os.Remove(path)
		if err := errors.Join(os.WriteFile(path, []byte(text), mode), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
		return Langbot{TokenFile: path, Token: "not this one"}
	}
	for _, text := range []string{secret, secret + "\n", secret + "\r\n", strings.Repeat("x", 4096) + "\n"} {
		if got, err := file(text, 0o640).Secret(); err != nil || got != strings.TrimSpace(text) {
			t.Errorf("%d bytes: %d, %v", len(text), len(got), err)
		}
	}
	for text, want := range map[string]string{
		"": "32 to 4096", "\n": "32 to 4096", secret[1:]: "(31 characters)", secret + " # comment": "without blanks", secret + "\n" + secret: "without blanks",
		strings.Repeat("x", 4097): "32 to 4096", secret + "\x00": "visible", secret + "é": "visible",
	} {
		if _, err := file(text, 0o600).Secret(); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3s3") || !errors.Is(err, engine.ErrInvalid) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	if _, err := file(secret, 0o604).Secret(); err == nil || !strings.Contains(err.Error(), "mode 0604") {
		t.Errorf("open to others: %v", err)
	}
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{fifo: "regular file", dir: "regular file", filepath.Join(dir, "none"): "no such file"} {
		if _, err := (Langbot{TokenFile: path}).Secret(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
	if got, err := (Langbot{Token: secret}).Secret(); err != nil || got != secret {
		t.Errorf("%q, %v", got, err)
	}
}
