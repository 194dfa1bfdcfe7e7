package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"
	"syscall"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
)

// maxFile bounds a configuration file in bytes.
const maxFile = 1 << 20

// Load returns the defaults, overridden by the file at path ("": none) and then by the
// environment. It checks keys and the form of values; [Config.Validate] checks the rest
// after flags were applied. An error in the file names line and column.
func Load(path string, env func(string) (string, bool)) (Config, error) {
	c := Default()
	if path != "" {
		b, isRoots, err := readFile(path)
		if err != nil {
			return Config{}, fmt.Errorf("configuration: %w", err)
		}
		if err := parse(path, b, &c); err != nil {
			return Config{}, err
		}
		// Root passes these roots to the launcher, so only root may choose them.
		if roots := c.MountRoots(); os.Geteuid() == 0 && len(roots) > 0 && !isRoots {
			return Config{}, &engine.FieldError{Field: "allowed_mount_roots", Value: spec.Quote(roots[0]),
				Rule: fmt.Sprintf("comes from %q, which must belong to root and be writable by nobody else when root starts the daemon (chown root, chmod go-w), or be given as --allow-mount-root", path)}
		}
		// It passes these as well, and the launcher executes them.
		for _, p := range c.Programs.all() {
			if os.Geteuid() == 0 && *p.value != "" && !isRoots {
				return Config{}, &engine.FieldError{Field: p.key, Value: spec.Quote(*p.value),
					Rule: fmt.Sprintf("comes from %q, which must belong to root and be writable by nobody else when root starts the daemon (chown root, chmod go-w), because root executes it", path)}
			}
		}
	}
	if env != nil {
		if err := fromEnv(env, &c); err != nil {
			return Config{}, err
		}
		c.Langbot.fromLangbotEnv(env)
	}
	return c, nil
}

// readFile reads a regular file. isRoots says that only root can write it. O_NONBLOCK keeps
// it from waiting for a FIFO's writer.
func readFile(path string) (b []byte, isRoots bool, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, false, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() {
		return nil, false, errors.Join(err, fmt.Errorf("%q is not a regular file", path))
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		isRoots = sys.Uid == 0 && st.Mode().Perm()&0o022 == 0
	}
	b, err = io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(b) > maxFile {
		err = fmt.Errorf("%q is longer than %d bytes", path, maxFile)
	}
	return b, isRoots, err
}

// EnvPrefix is the prefix of all variables.
const EnvPrefix = "BOXD_"

// Variable returns the name of the variable of a key, or "" if it has none.
func Variable(path string) string {
	for _, k := range keys() {
		if k.path == path {
			return k.env
		}
	}
	return ""
}

// SetIn reports whether the file at path gives a key another value than its default.
func SetIn(path, key string) bool {
	c, err := Load(path, nil)
	if err != nil {
		return false
	}
	got, byDefault := reflect.ValueOf(c), reflect.ValueOf(Default())
	for _, k := range keys() {
		if k.index == nil { // below a NAME, which only a file can have
			if list, _, _ := strings.Cut(k.path, "."); strings.HasPrefix(key, list+".") {
				return true
			}
		} else if k.path == key {
			return !reflect.DeepEqual(got.FieldByIndex(k.index).Interface(), byDefault.FieldByIndex(k.index).Interface())
		}
	}
	return false
}

// fromEnv sets each key whose variable is set and not empty.
func fromEnv(env func(string) (string, bool), c *Config) error {
	v := reflect.ValueOf(c).Elem()
	for _, k := range keys() {
		if k.env == "" {
			continue
		}
		text, ok := env(k.env)
		if !ok || text == "" {
			continue
		}
		dst := v.FieldByIndex(k.index)
		if dst.Kind() == reflect.Slice {
			dst.Set(reflect.ValueOf(strings.Split(text, k.sep)))
			continue
		}
		if err := setScalar(dst, text); err != nil {
			return fmt.Errorf("environment: %s (key %s): %w", k.env, k.path, err)
		}
	}
	return nil
}
