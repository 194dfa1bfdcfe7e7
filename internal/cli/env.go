package cli

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/flagtext"
)

// maxEnvFile is far more than execve(2) accepts. It keeps boxd from reading a device, given by
// mistake, without end.
const maxEnvFile = 4 << 20

// environment returns the variables of --env-file and --env, in this order. If one is set twice,
// the last value counts.
func (a *App) environment(files, flags []string) ([]string, error) {
	var env flagtext.Environment
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
			if err := env.Set(line, a.LookupEnv); err != nil {
				return nil, &engine.FieldError{Field: fmt.Sprintf("--env-file %s:%d", path, i+1), Value: spec.Quote(flagtext.Key(line)), Rule: err.Error()}
			}
		}
	}
	for _, kv := range flags {
		if err := env.Set(kv, a.LookupEnv); err != nil {
			return nil, &engine.FieldError{Field: "--env", Value: spec.Quote(flagtext.Key(kv)), Rule: err.Error()}
		}
	}
	return env.List, nil
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
