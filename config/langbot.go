package config

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
	"unicode"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/pathin"
	"github.com/boxd/boxd/policy"
)

// Langbot configures the listener for LangBot's Box Runtime protocol.
type Langbot struct {
	Listen         string    `yaml:"listen"`       // TCP address; empty: no listener
	TokenFile      string    `yaml:"token_file"`   // has the shared secret; see also Token
	InstanceID     string    `yaml:"instance_id"`  // the only instance admitted; empty: the first that connects
	Tenant         string    `yaml:"tenant"`       // of its sessions
	Profile        string    `yaml:"profile"`      // of its sessions
	BackendName    string    `yaml:"backend_name"` // that it reports to LangBot
	NetworkOn      string    `yaml:"network_on"`   // one of the four below
	TimeoutEnds    string    `yaml:"timeout_ends"` // LangbotSession or LangbotCommand
	SkillsDir      string    `yaml:"skills_dir"`   // on the host; empty: volumes
	SkillsSize     spec.Size `yaml:"skills_size"`  // of the skills of one workspace
	SkillsInodes   int64     `yaml:"skills_inodes"`
	MaxConnections int       `yaml:"max_connections"`
	// ImageNames maps names of images in requests to images of sessions. Other names mean the
	// image of the profile.
	ImageNames map[string]string `yaml:"image_names"`

	// Token is the shared secret itself, and Init, as JSON, the first message that LangBot
	// would otherwise send. Both come only from the environment, from the variables that
	// LangBot uses: LANGBOT_BOX_CONTROL_TOKEN and LANGBOT_BOX_CONFIG. TokenFile takes
	// precedence over Token.
	Token string `yaml:"-"`
	Init  string `yaml:"-"`
}

// Values of [Langbot].NetworkOn and TimeoutEnds.
const (
	LangbotRefuse   = "refuse"   // a request for a network is an error
	LangbotOffline  = "offline"  // a request for a network gets a box without one, and a warning
	LangbotBasic    = "basic"    // it gets a network that leads to package indexes only
	LangbotExtended = "extended" // it gets the network of the profile
	LangbotSession  = "session"  // a timeout ends the session, as in the protocol
	LangbotCommand  = "command"  // a timeout ends only the command
)

func defaultLangbot() Langbot {
	return Langbot{
		Tenant: "langbot", Profile: policy.LangbotProfile, BackendName: "boxd",
		NetworkOn: LangbotExtended, TimeoutEnds: LangbotSession,
		SkillsSize: 256 << 20, MaxConnections: 1024,
	}
}

// Lengths of a shared secret in the protocol.
const (
	minSecret = 32
	maxSecret = 4096
)

var (
	instanceSyntax = onUse(`^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$`)
	backendSyntax  = onUse(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)
)

// fromLangbotEnv reads the variables that LangBot's own runtime reads.
func (l *Langbot) fromLangbotEnv(env func(string) (string, bool)) {
	for _, v := range []struct {
		name  string
		dst   *string
		other string // a variable that takes precedence
	}{
		{"LANGBOT_BOX_CONTROL_TOKEN", &l.Token, ""},
		{"LANGBOT_BOX_CONFIG", &l.Init, ""},
		{"LANGBOT_BOX_TRUSTED_INSTANCE_UUID", &l.InstanceID, EnvPrefix + "LANGBOT_INSTANCE_ID"},
	} {
		text, _ := env(v.name)
		if other, _ := env(v.other); text != "" && other == "" {
			*v.dst = text
		}
	}
}

func (c *Config) validateLangbot() error {
	l := &c.Langbot
	switch {
	case l.InstanceID != "" && !instanceSyntax().MatchString(l.InstanceID):
		return refuse("langbot.instance_id", spec.Quote(l.InstanceID), `must be 1 to 128 of A-Z, a-z, 0-9 and "._:-", starting with a letter or digit`)
	case !backendSyntax().MatchString(l.BackendName):
		return refuse("langbot.backend_name", spec.Quote(l.BackendName), `must be 1 to 64 of A-Z, a-z, 0-9 and "._-", starting with a letter or digit`)
	case !slices.Contains([]string{LangbotRefuse, LangbotOffline, LangbotBasic, LangbotExtended}, l.NetworkOn):
		return refuse("langbot.network_on", spec.Quote(l.NetworkOn), `must be "extended", "basic", "offline" or "refuse"`)
	case l.TimeoutEnds != LangbotSession && l.TimeoutEnds != LangbotCommand:
		return refuse("langbot.timeout_ends", spec.Quote(l.TimeoutEnds), `must be "session" or "command"`)
	case l.SkillsSize == 0 && l.SkillsDir == "":
		return refuse("langbot.skills_size", "0", "must be above 0 without skills_dir: volumes have a size")
	case l.SkillsSize != 0 && (l.SkillsSize < engine.MinVolumeBytes || l.SkillsSize > engine.MaxVolumeBytes):
		return refuse("langbot.skills_size", spec.FormatSize(int64(l.SkillsSize)),
			fmt.Sprintf("must be %s to %s", spec.FormatSize(engine.MinVolumeBytes), spec.FormatSize(engine.MaxVolumeBytes)))
	case l.SkillsInodes != 0 && (l.SkillsInodes < engine.MinVolumeInodes || l.SkillsInodes > engine.MaxVolumeInodes):
		return refuse("langbot.skills_inodes", fmt.Sprint(l.SkillsInodes),
			fmt.Sprintf("must be %d to %d, or 0 for a number that follows from skills_size", engine.MinVolumeInodes, int64(engine.MaxVolumeInodes)))
	case l.MaxConnections < 1 || l.MaxConnections > 1<<20:
		return refuse("langbot.max_connections", fmt.Sprint(l.MaxConnections), fmt.Sprintf("must be 1 to %d", 1<<20))
	}
	if l.Token != "" {
		if err := checkSecret("LANGBOT_BOX_CONTROL_TOKEN", l.Token); err != nil {
			return err
		}
	}
	if l.TokenFile != "" {
		if err := validatePath("langbot.token_file", l.TokenFile); err != nil {
			return err
		}
	}
	return c.validateLangbotListen()
}

func (c *Config) validateLangbotListen() error {
	l := &c.Langbot
	if l.Listen == "" {
		return nil
	}
	host, port, err := splitAddress("langbot.listen", l.Listen, "127.0.0.1:5410")
	switch {
	case err != nil:
		return err
	case l.Listen == c.Listen && port != "0":
		return refuse("langbot.listen", spec.Quote(l.Listen), "is that of listen: each needs a port of its own")
	case !isLoopback(host) && l.Token == "" && l.TokenFile == "":
		return refuse("langbot.listen", spec.Quote(l.Listen), "is open to other hosts, which needs authentication: "+
			"set langbot.token_file or LANGBOT_BOX_CONTROL_TOKEN, or listen on 127.0.0.1 or [::1]")
	}
	return nil
}

// validateLangbotPolicy checks what the policy p decides about LangBot's sessions.
func (c *Config) validateLangbotPolicy(p *policy.Policy) error {
	l := &c.Langbot
	if err := policy.ValidateTenant(l.Tenant); err != nil {
		return langbotError("langbot.tenant", l.Tenant, err)
	}
	if l.Profile == "" {
		return refuse("langbot.profile", `""`, "must name a profile")
	}
	off := false // each request decides about the network
	request := policy.Request{Wishes: spec.Wishes{Profile: l.Profile, LiveWishes: spec.LiveWishes{Network: &off}}}
	// Without the listener there may be no LangBot. Its sessions through the socket are refused one by one.
	request.HasImage = l.Listen == ""
	if _, err := p.Resolve(l.Tenant, request); err != nil {
		if denied, ok := errors.AsType[*policy.DeniedError](err); ok && denied.Field == "image" {
			return refuse("profiles."+l.Profile+".image", denied.Value, denied.Rule)
		}
		return langbotError("langbot.profile", l.Profile, err)
	}
	if l.NetworkOn == LangbotBasic && p.Locks(l.Profile, spec.NetworkRulesName) {
		return refuse("langbot.network_on", spec.Quote(l.NetworkOn), fmt.Sprintf("has no effect, because profile %q locks network_rules: let the profile extend network_basic", l.Profile))
	}
	for _, name := range slices.Sorted(maps.Keys(l.ImageNames)) {
		image, field := l.ImageNames[name], "langbot.image_names."+name
		r, err := p.Resolve(l.Tenant, policy.Request{Wishes: spec.Wishes{Profile: l.Profile, Image: &image, LiveWishes: spec.LiveWishes{Network: &off}}})
		if err != nil {
			return langbotError(field, image, err)
		}
		if slices.Contains(r.Overridden, "image") {
			return refuse(field, spec.Quote(image), fmt.Sprintf("has no effect, because profile %q locks the image", l.Profile))
		}
	}
	if l.SkillsDir == "" {
		return nil
	}
	if err := validatePath("langbot.skills_dir", l.SkillsDir); err != nil {
		return err
	}
	roots := p.MountRoots(l.Tenant)
	within := func(root string) bool { return pathin.In(l.SkillsDir, path.Clean(root)) }
	if !slices.ContainsFunc(roots, within) {
		return refuse("langbot.skills_dir", spec.Quote(l.SkillsDir),
			fmt.Sprintf("must be in one of the allowed mount roots %q of tenant %s: add one, or leave it out to have volumes", roots, spec.Quote(l.Tenant)))
	}
	return nil
}

// langbotError returns err, of package policy, as an error about field.
func langbotError(field, value string, err error) error {
	if bad, ok := errors.AsType[*engine.FieldError](err); ok {
		return refuse(field, bad.Value, bad.Rule)
	}
	if denied, ok := errors.AsType[*policy.DeniedError](err); ok {
		return refuse(field, denied.Value, denied.Rule)
	}
	return refuse(field, spec.Quote(value), err.Error())
}

// Secret returns the shared secret: the content of TokenFile, or else Token; empty if there
// is none. It needs the right to read the file, to which other users must have no access.
func (l Langbot) Secret() (string, error) {
	if l.TokenFile == "" {
		return l.Token, nil
	}
	f, err := os.OpenFile(l.TokenFile, os.O_RDONLY|syscall.O_NONBLOCK, 0) // opening a FIFO would wait for a writer
	if err != nil {
		return "", fmt.Errorf("langbot.token_file: %w", err)
	}
	defer f.Close()
	st, err := f.Stat()
	switch {
	case err != nil:
		return "", fmt.Errorf("langbot.token_file: %w", err)
	case !st.Mode().IsRegular():
		return "", refuse("langbot.token_file", spec.Quote(l.TokenFile), "must be a regular file")
	case st.Mode().Perm()&0o007 != 0:
		return "", refuse("langbot.token_file", fmt.Sprintf("%q with mode %04o", l.TokenFile, st.Mode().Perm()), "must not be accessible to others: chmod o= it")
	}
	b, err := io.ReadAll(io.LimitReader(f, maxSecret+2)) // one byte more than a valid secret with its newline
	if err != nil {
		return "", fmt.Errorf("langbot.token_file: %w", err)
	}
	secret := strings.TrimSuffix(strings.TrimSuffix(string(b), "\n"), "\r")
	return secret, checkSecret("langbot.token_file", secret)
}

// checkSecret shows no part of the secret in its errors.
func checkSecret(field, secret string) error {
	bad := func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) || r > unicode.MaxASCII }
	switch {
	case len(secret) < minSecret || len(secret) > maxSecret:
		return refuse(field, fmt.Sprintf("(%d characters)", len(secret)), fmt.Sprintf("must hold a secret of %d to %d characters, such as that of: openssl rand -hex 32", minSecret, maxSecret))
	case strings.ContainsFunc(secret, bad):
		return refuse(field, "(not shown)", "must hold one secret of visible ASCII characters, without blanks")
	}
	return nil
}
