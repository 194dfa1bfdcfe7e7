package config

import (
	_ "embed"
	"reflect"

	"github.com/boxd/boxd/policy"
)

//go:embed languages.yaml
var languagesFile []byte

// languages returns the languages that every built-in profile has. A test reads the file, so
// it is correct.
func languages() map[string]policy.LanguageConfig {
	var shipped struct {
		Languages map[string]policy.LanguageConfig `yaml:"languages"`
	}
	if err := parseInto("languages.yaml", languagesFile, reflect.ValueOf(&shipped).Elem()); err != nil {
		panic(err)
	}
	return shipped.Languages
}
