package policy

// ValidateSessionID checks a session's id: 1 to 128 of A-Z, a-z, 0-9 and "._:@-",
// not starting with ".", without "..". Ids are compared exactly, case matters.
func ValidateSessionID(id string) error { return nil }

// ValidateProcessID checks the id of a managed process, by the rules of a session's.
func ValidateProcessID(id string) error { return nil }

// ValidateTenant checks the name of a tenant: 1 to 64 of a-z, A-Z, 0-9 and "._-",
// not starting with ".", without "..".
func ValidateTenant(name string) error { return nil }
