package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// billOfMaterials lists the programs and their parts in CycloneDX's JSON. It has no serial number, which would
// have to differ between two builds of the same bytes.
func (p packages) billOfMaterials(programs programs, parts []part) ([]byte, error) {
	root := cdx.Component{BOMRef: "boxd", Type: cdx.ComponentTypeApplication, Name: "boxd", Version: p.version, Licenses: spdx("Apache-2.0"),
		PackageURL: "pkg:golang/" + module + "@" + p.version, ExternalReferences: &[]cdx.ExternalReference{{Type: cdx.ERTypeVCS, URL: "https://" + module}}}
	var components []cdx.Component
	needs := map[string][]string{}
	for _, program := range programs {
		content, err := os.ReadFile(filepath.Join(p.stage, program.path))
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(content)
		components = append(components, cdx.Component{BOMRef: program.path, Type: cdx.ComponentTypeApplication, Name: path.Base(program.path), Version: p.version,
			Hashes: &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(sum[:])}}, Licenses: spdx("Apache-2.0")})
		needs["boxd"] = append(needs["boxd"], program.path)
		needs[program.path] = nil
	}
	for _, part := range parts {
		c := cdx.Component{BOMRef: part.purl, Type: cdx.ComponentTypeLibrary, Name: part.name, Version: part.version, PackageURL: part.purl, Licenses: spdx(part.licence)}
		if hash, ok := strings.CutPrefix(part.sum, "h1:"); ok {
			// The hash of go.sum is over a list of the files' SHA-256, so it is a property and no hash of an archive.
			raw, err := base64.StdEncoding.DecodeString(hash)
			if err != nil {
				return nil, fmt.Errorf("module %s: hash %q: %w", part.name, part.sum, err)
			}
			c.Properties = &[]cdx.Property{{Name: "go:h1", Value: hex.EncodeToString(raw)}}
		}
		components = append(components, c)
		for _, program := range part.programs {
			needs[program] = append(needs[program], part.purl)
		}
	}
	var dependencies []cdx.Dependency
	for _, ref := range append([]string{"boxd"}, needs["boxd"]...) {
		on := needs[ref]
		dependencies = append(dependencies, cdx.Dependency{Ref: ref, Dependencies: &on})
	}
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{Timestamp: p.date.Format("2006-01-02T15:04:05Z"), Component: &root}
	bom.Components, bom.Dependencies = &components, &dependencies
	var b bytes.Buffer
	if err := cdx.NewBOMEncoder(&b, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bom); err != nil {
		return nil, fmt.Errorf("bill of materials: %w", err)
	}
	return b.Bytes(), nil
}

// spdx is an expression also where it is a single licence: CycloneDX takes both.
func spdx(expression string) *cdx.Licenses { return &cdx.Licenses{{Expression: expression}} }
