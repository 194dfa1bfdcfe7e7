package config

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/boxd/boxd/engine/spec"
)

var platformSyntax = onUse(`^[a-z0-9]+/[a-z0-9_]+(/[a-z0-9.]+)?$`)

// validateImages checks the section images, except for its sizes.
func (c *Config) validateImages() error {
	i := &c.Images
	if i.Platform != "" && !platformSyntax().MatchString(i.Platform) {
		return refuse("images.platform", spec.Quote(i.Platform), "must be OS/ARCHITECTURE or OS/ARCHITECTURE/VARIANT, such as linux/arm64")
	}
	for n, name := range i.Prefetch {
		if _, err := spec.CheckReference(fmt.Sprintf("images.prefetch[%d]", n), name); err != nil {
			return err
		}
	}
	for _, host := range slices.Sorted(maps.Keys(i.Registries)) {
		field, r := "images.registries."+host, i.Registries[host]
		if !spec.IsRegistry(host) || host != strings.ToLower(host) {
			return refuse(field, spec.Quote(host), "must be the host of a registry in lower case, such as docker.io or localhost:5000")
		}
		for n, mirror := range r.Mirrors {
			at := fmt.Sprintf("%s.mirrors[%d]", field, n)
			u, err := url.Parse(mirror)
			switch {
			case err != nil || !spec.IsRegistry(u.Host) || u.User != nil || u.RawQuery != "" || u.Fragment != "":
				return refuse(at, "(not shown)", "must be https://HOST or https://HOST/PATH, without a login")
			case u.Scheme != "https" && !(u.Scheme == "http" && i.Registries[u.Host].Insecure):
				return refuse(at, spec.Quote(mirror), fmt.Sprintf("must begin with https://, or with http:// if images.registries.%s.insecure is true", u.Host))
			}
		}
		if r.LoginFile != "" {
			if err := validatePath(field+".login_file", r.LoginFile); err != nil {
				return err
			}
		}
	}
	return nil
}
