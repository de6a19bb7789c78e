package v1alpha1

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kube-openapi/pkg/validation/strfmt"
	"k8s.io/kube-openapi/pkg/validation/validate"
	"sigs.k8s.io/yaml"
)

const schemaFile = "../../docs/parameters.schema.json"

// jsonSchema is as much of JSON schema as parameters need. The order of its fields is that of the file.
type jsonSchema struct {
	Schema      string                 `json:"$schema,omitempty"`
	Title       string                 `json:"title,omitempty"`
	Description string                 `json:"description,omitempty"`
	OneOf       []*jsonSchema          `json:"oneOf,omitempty"`
	Type        any                    `json:"type,omitempty"`
	Pattern     string                 `json:"pattern,omitempty"`
	Enum        []string               `json:"enum,omitempty"`
	Minimum     *int                   `json:"minimum,omitempty"`
	Maximum     *int                   `json:"maximum,omitempty"`
	Items       *jsonSchema            `json:"items,omitempty"`
	Properties  map[string]*jsonSchema `json:"properties,omitempty"`
	Required    []string               `json:"required,omitempty"`
	Closed      *bool                  `json:"additionalProperties,omitempty"`
}

// schemas makes the schema from the types and their comments.
type schemas struct {
	t    *testing.T
	file *ast.File
}

func (s schemas) all() *jsonSchema {
	all := &jsonSchema{
		Schema: "http://json-schema.org/draft-07/schema#", Title: "Parameters of " + DriverName,
		Description: "What stands in spec.config[].opaque.parameters of a DeviceClass, or in spec.devices.config[].opaque.parameters of a claim.",
	}
	for _, kind := range []string{KindShareClass, KindShareConfig} {
		one := s.object(kind)
		one.Title = kind
		one.Properties["apiVersion"] = &jsonSchema{Type: "string", Enum: []string{APIVersion}}
		one.Properties["kind"] = &jsonSchema{Type: "string", Enum: []string{kind}}
		one.Required = []string{"apiVersion", "kind"}
		all.OneOf = append(all.OneOf, one)
	}
	return all
}

func (s schemas) object(name string) *jsonSchema {
	closed := false
	o := &jsonSchema{Type: "object", Properties: map[string]*jsonSchema{}, Closed: &closed}
	for _, declaration := range s.file.Decls {
		group, ok := declaration.(*ast.GenDecl)
		if !ok {
			continue
		}
		for _, declared := range group.Specs {
			declared, ok := declared.(*ast.TypeSpec)
			if !ok || declared.Name.Name != name {
				continue
			}
			o.Description = oneLine(group.Doc)
			for _, f := range declared.Type.(*ast.StructType).Fields.List {
				key, _, _ := strings.Cut(reflect.StructTag(strings.Trim(f.Tag.Value, "`")).Get("json"), ",")
				if key != "" {
					o.Properties[key] = s.of(f.Type)
					o.Properties[key].Description = oneLine(f.Doc)
				}
			}
		}
	}
	if o.Description == "" {
		s.t.Fatalf("parameters.go has no type %s", name)
	}
	return o
}

func (s schemas) of(expression ast.Expr) *jsonSchema {
	switch e := expression.(type) {
	case *ast.StarExpr:
		return s.of(e.X)
	case *ast.ArrayType: // there is one, of names of fields
		return &jsonSchema{Type: "array", Items: &jsonSchema{Type: "string", Enum: []string{FieldCorePolicy, FieldEnforcement}}}
	case *ast.SelectorExpr: // resource.Quantity, of memory
		least := MemoryStep
		return &jsonSchema{Type: []string{"string", "integer"}, Minimum: &least, Pattern: `^[0-9]+(\.[0-9]+)?(k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|[eE][0-9]+)?$`}
	case *ast.Ident:
		if e.Name == "int" { // there are only percentages
			least, most := 0, AllCores
			return &jsonSchema{Type: "integer", Minimum: &least, Maximum: &most}
		}
		if values := s.values(e.Name); len(values) > 0 {
			return &jsonSchema{Type: "string", Enum: values}
		}
		return s.object(e.Name)
	}
	s.t.Fatalf("no schema for %T", expression)
	return nil
}

// values are the constants of a type.
func (s schemas) values(kind string) (values []string) {
	for _, declaration := range s.file.Decls {
		group, ok := declaration.(*ast.GenDecl)
		if !ok {
			continue
		}
		for _, declared := range group.Specs {
			if v, ok := declared.(*ast.ValueSpec); ok && v.Type != nil && typeName(v.Type) == typeName(ast.NewIdent(kind)) {
				values = append(values, strings.Trim(v.Values[0].(*ast.BasicLit).Value, `"`))
			}
		}
	}
	return values
}

func TestSchemaIsUpToDate(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "parameters.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	encoder := json.NewEncoder(&text)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(schemas{t, file}.all()); err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(schemaFile, []byte(text.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), text.String()); diff != "" {
		t.Errorf("%s (-want +got); go test ./api/v1alpha1 -update writes it:\n%s", schemaFile, diff)
	}
}

// beyondSchemas are mistakes that a schema cannot tell: what two fields have to do with each other, and amounts that are
// written with a unit.
var beyondSchemas = []string{
	"class-cores-crossed.yaml", "class-memory-crossed.yaml",
	"class-default-beyond.yaml", "class-default-below.yaml", "class-default-step.yaml",
}

func TestSchemaAgreesWithTheDecoder(t *testing.T) {
	data, err := os.ReadFile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	var s spec.Schema
	if err := json.Unmarshal(data, &s); err != nil {
		t.Fatal(err)
	}
	validator := validate.NewSchemaValidator(&s, nil, "", strfmt.Default)
	for _, dir := range []string{"good", "bad"} {
		for name, content := range parametersIn(t, dir) {
			var object any
			if err := yaml.Unmarshal([]byte(content), &object); err != nil {
				t.Fatal(err)
			}
			if object == nil {
				continue // this validator takes it for no parameters at all
			}
			valid := validator.Validate(object).IsValid()
			if want := dir == "good" || slices.Contains(beyondSchemas, name); valid != want {
				t.Errorf("%s: the schema says %t: %v", filepath.Join(dir, name), valid, validator.Validate(object).Errors)
			}
		}
	}
}
