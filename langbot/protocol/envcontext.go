package protocol

// parseContext parses the context of a request. It also accepts a context that names an
// installation of a plugin, if that is complete.
func parseContext(raw []byte) (*Context, error) {
	c := &Context{Generation: 1}
	var binding [3]field // installation_uuid, runtime_revision, artifact_digest
	var generation field
	m := object(raw)
	for m.next() {
		f := field{validation, "context." + string(m.name), m.value}
		var err error
		switch string(m.name) {
		case "instance_uuid":
			c.Instance, err = f.nonEmptyID()
		case "workspace_uuid":
			c.Workspace, err = f.nonEmptyID()
		case "placement_generation":
			generation = f
			c.Generation, err = f.integer(1)
		case "installation_uuid":
			binding[0] = f
			_, err = optional(f, field.nonEmptyID)
		case "runtime_revision":
			binding[1] = f
		case "artifact_digest":
			binding[2] = f
		default:
			err = Errorf(validation, "context: unknown key %q: leave it out", m.name)
		}
		if err != nil {
			return nil, err
		}
	}
	switch {
	case m.err != nil:
		return nil, field{validation, "context", raw}.fail("want an object")
	case c.Instance == "":
		return nil, Errorf(validation, "context.instance_uuid: is missing: it is required")
	case c.Workspace == "":
		return nil, Errorf(validation, "context.workspace_uuid: is missing: it is required")
	case binding[1].raw != nil || binding[2].raw != nil:
		if err := checkBinding(binding, generation); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// checkBinding checks the members that identify an installation. Numbers among them must be
// written as numbers.
func checkBinding(b [3]field, generation field) error {
	if b[0].raw == nil || b[0].null() || b[1].raw == nil || b[2].raw == nil {
		return Errorf(validation, "context: installation_uuid, runtime_revision and artifact_digest go together: give all three or none")
	}
	if n, big, ok := b[1].literal(); !ok || n < 1 && !big || b[1].raw[0] == '-' {
		return b[1].fail("must be an integer of at least 1")
	}
	if generation.raw != nil {
		if _, _, ok := generation.literal(); !ok {
			return generation.fail("must be an integer")
		}
	}
	digest, err := b[2].trimmed()
	if err != nil {
		return err
	}
	if len(digest) != 64 {
		return b[2].fail("must be 64 lower-case hexadecimal digits")
	}
	for i := range len(digest) {
		if c := digest[i]; !isDigit(c) && (c < 'a' || c > 'f') {
			return b[2].fail("must be 64 lower-case hexadecimal digits")
		}
	}
	return nil
}
