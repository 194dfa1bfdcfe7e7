package policy

import (
	"fmt"
	"strings"

	"github.com/boxd/boxd/engine/spec"
)

const (
	alnum = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"

	sessionIDLen = 128
	sessionIDSet = alnum + "._:@-"

	tenantLen = 64
	tenantSet = alnum + "._-"

	profileNameLen = 64
	profileNameSet = alnum + "_-"
)

// ValidateSessionID checks a session's ID: 1 to 128 of A-Z, a-z, 0-9 and "._:@-", not
// starting with ".", without "..". IDs are compared exactly; case matters.
func ValidateSessionID(id string) error {
	return validateName("session", id, sessionIDLen, sessionIDSet, `A-Z, a-z, 0-9 and "._:@-"`)
}

// ValidateProcessID checks the ID of a managed process, by the rules for sessions.
func ValidateProcessID(id string) error {
	return validateName("process", id, sessionIDLen, sessionIDSet, `A-Z, a-z, 0-9 and "._:@-"`)
}

// ValidateTenant checks the name of a tenant: 1 to 64 of A-Z, a-z, 0-9 and "._-",
// not starting with ".", without "..".
func ValidateTenant(name string) error {
	return validateName("tenant", name, tenantLen, tenantSet, `A-Z, a-z, 0-9 and "._-"`)
}

func validateName(field, s string, longest int, set, setText string) error {
	if validName(s, longest, set) {
		return nil
	}
	return &spec.FieldError{Field: field, Value: spec.Quote(s),
		Rule: fmt.Sprintf(`must be 1 to %d of %s, not starting with "." and without ".."`, longest, setText)}
}

func validName(s string, longest int, set string) bool {
	return s != "" && len(s) <= longest && strings.Trim(s, set) == "" && // Trim leaves any other byte
		s[0] != '.' && !strings.Contains(s, "..")
}
