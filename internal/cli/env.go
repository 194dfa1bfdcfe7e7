package cli

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
)

// maxEnvFile is far more than execve(2) accepts. It keeps boxd from reading a device, given by
// mistake, without end.
const maxEnvFile = 4 << 20

// environment returns the variables of --env-file and --env, in this order. If one is set twice,
// the last value counts.
func (a *App) environment(files, flags []string) ([]string, error) {
	var env environment
	for _, path := range files {
		lines, err := readEnvFile(path)
		if err != nil {
			return nil, err
		}
		for i, line := range lines {
			line = strings.TrimLeft(line, " \t")
			if line == "" || line[0] == '#' {
				continue
			}
			if err := env.set(line, a.LookupEnv); err != nil {
				return nil, &engine.FieldError{Field: fmt.Sprintf("--env-file %s:%d", path, i+1), Value: spec.Quote(key(line)), Rule: err.Error()}
			}
		}
	}
	for _, kv := range flags {
		if err := env.set(kv, a.LookupEnv); err != nil {
			return nil, &engine.FieldError{Field: "--env", Value: spec.Quote(key(kv)), Rule: err.Error()}
		}
	}
	return env.list, nil
}

func readEnvFile(path string) ([]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("--env-file: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxEnvFile+1))
	if err != nil {
		return nil, fmt.Errorf("--env-file: %w", err)
	}
	if len(text) > maxEnvFile {
		return nil, &engine.FieldError{Field: "--env-file", Value: spec.Quote(path), Rule: "must be at most " + spec.FormatSize(maxEnvFile)}
	}
	return strings.Split(strings.ReplaceAll(string(text), "\r\n", "\n"), "\n"), nil
}

// environment is a list of KEY=VALUE without duplicates.
type environment struct {
	list  []string
	index map[string]int
}

// set adds KEY=VALUE, or KEY with its value in the caller's environment. Like docker and podman,
// it omits a KEY that is not set there.
func (e *environment) set(kv string, lookup func(string) (string, bool)) error {
	name := key(kv)
	if name == "" || strings.ContainsAny(name, " \t") {
		return fmt.Errorf("must be KEY=VALUE or KEY, and KEY has no blanks")
	}
	if name == kv {
		value, ok := lookup(name)
		if !ok {
			return nil
		}
		kv += "=" + value
	}
	if i, ok := e.index[name]; ok {
		e.list[i] = kv
		return nil
	}
	if e.index == nil {
		e.index = map[string]int{}
	}
	e.index[name] = len(e.list)
	e.list = append(e.list, kv)
	return nil
}

// key returns the name of a variable, for messages: the value is often secret.
func key(kv string) string {
	name, _, _ := strings.Cut(kv, "=")
	return name
}
