package cli

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
)

// maxLogin bounds how much is read of a file with logins.
const maxLogin = 1 << 20

// login returns "user:password" for a registry: the first line of file, or what docker login has noted. Empty: none.
func (a *App) login(file, host string) (string, error) {
	if file == "" {
		return a.dockerLogin(host)
	}
	text, err := readLogin(file)
	if err != nil {
		return "", fmt.Errorf("--login-file: %w", err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	line = strings.TrimSuffix(line, "\r")
	if user, password, ok := strings.Cut(line, ":"); !ok || user == "" || password == "" {
		return "", &engine.FieldError{Field: "--login-file", Value: spec.Quote(file), Rule: "must begin with a line USER:PASSWORD"}
	}
	return line, nil
}

func readLogin(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxLogin+1))
	if len(text) > maxLogin {
		err = fmt.Errorf("%s: must be at most %s", spec.Quote(file), spec.FormatSize(maxLogin))
	}
	return text, err
}

// dockerLogin looks host up in the configuration file of docker, podman and skopeo. It runs no credential helper.
func (a *App) dockerLogin(host string) (string, error) {
	dir := a.env("", "DOCKER_CONFIG")
	if home := a.env("", "HOME"); dir == "" && home != "" {
		dir = filepath.Join(home, ".docker")
	}
	if dir == "" {
		return "", nil
	}
	file := filepath.Join(dir, "config.json")
	text, err := readLogin(file)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	var config struct {
		Auths map[string]struct {
			Auth          string `json:"auth"`
			IdentityToken string `json:"identitytoken"`
		} `json:"auths"`
		CredsStore  string            `json:"credsStore"`
		CredHelpers map[string]string `json:"credHelpers"`
	}
	if err == nil {
		err = json.Unmarshal(text, &config)
	}
	if err != nil {
		return "", fmt.Errorf("login of %s: %s: %w; name another file with --login-file", spec.Quote(host), spec.Quote(file), err)
	}
	names := []string{host, "https://" + host, "https://" + host + "/v1/", "https://" + host + "/v2/"}
	if host == "docker.io" {
		names = append(names, "https://index.docker.io/v1/", "index.docker.io")
	}
	for _, name := range names {
		entry, ok := config.Auths[name]
		if entry.Auth != "" {
			login, err := base64.StdEncoding.DecodeString(entry.Auth)
			if err != nil || !strings.Contains(string(login), ":") {
				return "", fmt.Errorf("login of %s: %s: auth must be USER:PASSWORD in base64; run docker login again, or use --login-file", spec.Quote(host), spec.Quote(file))
			}
			return string(login), nil
		}
		if config.CredHelpers[name] != "" || ok && (config.CredsStore != "" || entry.IdentityToken != "") {
			return "", fmt.Errorf("login of %s: %s names a credential helper or token, which boxd does not support: use --login-file", spec.Quote(host), spec.Quote(file))
		}
	}
	return "", nil
}
