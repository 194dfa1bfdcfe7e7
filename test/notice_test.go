package test

import (
	"bytes"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// licences are those that NOTICE names, each with words that its text has and the texts of
// the others do not.
var licences = map[string]string{
	"Apache-2.0":   "Apache License",
	"MIT":          "Permission is hereby granted, free of charge",
	"BSD-2-Clause": "Redistribution and use in source and binary forms",
	"BSD-3-Clause": "used to endorse or promote products derived",
	"MPL-2.0":      "Mozilla Public License",
	"CC-BY-4.0":    "Creative Commons Attribution 4.0 International Public License By exercising",
	"FTL":          "The FreeType License",
	"OFL-1.1":      "SIL OPEN FONT LICENSE Version 1.1",
}

// TestNotice: NOTICE lists exactly the modules that are linked into each program, with the
// licences that come with them.
func TestNotice(t *testing.T) {
	text, err := os.ReadFile("../NOTICE")
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]map[string]string{} // program, module, licence
	program := ""
	for line := range strings.Lines(string(text)) {
		module, licence, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch {
		case strings.HasPrefix(line, "    "):
			listed[program][module] = strings.TrimSpace(licence)
		case licence == "" && module != "":
			program = module
			listed[program] = map[string]string{}
		}
	}
	dirs, err := os.ReadDir("../cmd")
	if err != nil || len(dirs) < 6 {
		t.Fatalf("%d programs, %v", len(dirs), err)
	}
	cgo := map[string]string{"boxd": "0", "boxd-init": "1", "boxd-agent": "1", "boxd-unpacker": "1", "boxd-containerd": "0", "boxd-bench": "0"}
	for _, d := range dirs {
		program := d.Name()
		cgo, ok := cgo[program]
		if !ok {
			t.Errorf("cmd/%s: say here whether it is built with C", program)
			continue
		}
		linked := linkedModules(t, program, cgo)
		if got, want := slices.Sorted(maps.Keys(listed[program])), slices.Sorted(maps.Keys(linked)); !slices.Equal(got, want) {
			t.Errorf("NOTICE lists for %s\n%s\nbut it links\n%s", program, strings.Join(got, "\n"), strings.Join(want, "\n"))
			continue
		}
		for module, dir := range linked {
			checkLicence(t, module, dir, listed[program][module])
		}
	}
}

// linkedModules returns the other modules of a program, and where their sources are.
func linkedModules(t *testing.T, program, cgo string) map[string]string {
	t.Helper()
	cmd := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}} {{.Dir}}{{end}}{{end}}", ".")
	cmd.Dir = "../cmd/" + program // boxd-containerd is a module of its own
	cmd.Env = append(os.Environ(), "CGO_ENABLED="+cgo, "GOFLAGS="+makefile(t, "print-goflags"))
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list -deps ./cmd/%s: %v", program, err)
	}
	dirs := map[string]string{}
	for line := range strings.Lines(string(out)) {
		if path, dir, ok := strings.Cut(strings.TrimSpace(line), " "); ok && path != strings.TrimSuffix(module, "/") {
			dirs[path] = dir
		}
	}
	return dirs
}

func checkLicence(t *testing.T, module, dir, stated string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "LICENSE*"))
	if err != nil || len(files) == 0 {
		t.Errorf("%s: no licence in %s: %v", module, dir, err)
	}
	var found []string
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Error(err)
		}
		text = bytes.Join(bytes.Fields(text), []byte(" "))
		has := func(name string) bool { return bytes.Contains(text, []byte(licences[name])) }
		for name := range licences {
			// The text of some begins as that of another.
			longer := map[string]string{"BSD-2-Clause": "BSD-3-Clause", "MIT": "OFL-1.1"}[name]
			if has(name) && (longer == "" || !has(longer)) {
				found = append(found, name)
			}
		}
	}
	slices.Sort(found)
	if got := strings.Join(found, " and "); got != stated {
		t.Errorf("NOTICE says that %s is under %q, its licence files say %q", module, stated, got)
	}
}
