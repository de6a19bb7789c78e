package v1alpha1

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite docs/parameters.md")

const preface = `# Parameters

What classes and claims say beyond capacities and selectors, as opaque parameters for the driver ` + "`" + DriverName + "`" + `. This page is made
from the types in [api/v1alpha1](../api/v1alpha1). Everything is optional but ` + "`apiVersion: " + APIVersion + "`" + ` and ` + "`kind`" + `; a field that is not listed here
is an error, and the pod's Events say so. What a class says travels with the allocation: a later change of the class does not touch claims that are allocated.
Editors and checkers of manifests can use [parameters.schema.json](parameters.schema.json), which cannot tell bounds that cross.
`

// kinds are the types of the reference, those that stand for themselves first.
var kinds = []string{"ShareClass", "MemoryBounds", "CoreBounds", "ShareConfig", "CorePolicy", "Enforcement"}

func TestReferenceIsUpToDate(t *testing.T) {
	const path = "../../docs/parameters.md"
	file, err := parser.ParseFile(token.NewFileSet(), "parameters.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	got := preface
	for _, kind := range kinds {
		got += "\n" + section(t, file, kind)
	}
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("docs/parameters.md (-want +got); go test ./api/v1alpha1 -update writes it:\n%s", diff)
	}
}

func section(t *testing.T, file *ast.File, kind string) string {
	t.Helper()
	text := ""
	for _, declaration := range file.Decls {
		group, ok := declaration.(*ast.GenDecl)
		if !ok {
			continue
		}
		for _, spec := range group.Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				if spec.Name.Name == kind {
					text = fmt.Sprintf("## %s\n\n%s\n\n", kind, oneLine(group.Doc)) + fields(spec) + text
				}
			case *ast.ValueSpec:
				if named, ok := spec.Type.(*ast.Ident); ok && named.Name == kind {
					text += fmt.Sprintf("- `%s`: %s\n", strings.Trim(spec.Values[0].(*ast.BasicLit).Value, `"`), oneLine(spec.Doc))
				}
			}
		}
	}
	if text == "" {
		t.Fatalf("parameters.go has no type %s", kind)
	}
	return text
}

// fields is a table of a struct's fields, empty for any other type.
func fields(spec *ast.TypeSpec) string {
	structure, ok := spec.Type.(*ast.StructType)
	if !ok {
		return ""
	}
	table := "| field | type | what |\n|---|---|---|\n"
	for _, f := range structure.Fields.List {
		name, _, _ := strings.Cut(reflect.StructTag(strings.Trim(f.Tag.Value, "`")).Get("json"), ",")
		if name != "" {
			table += fmt.Sprintf("| `%s` | %s | %s |\n", name, typeName(f.Type), oneLine(f.Doc))
		}
	}
	return table
}

func typeName(expression ast.Expr) string {
	switch e := expression.(type) {
	case *ast.StarExpr:
		return typeName(e.X)
	case *ast.ArrayType:
		return "list of " + typeName(e.Elt)
	case *ast.SelectorExpr:
		return strings.ToLower(e.Sel.Name)
	case *ast.Ident:
		if ast.IsExported(e.Name) {
			return fmt.Sprintf("[%s](#%s)", e.Name, strings.ToLower(e.Name))
		}
		return e.Name
	}
	return fmt.Sprintf("%T", expression)
}

func oneLine(doc *ast.CommentGroup) string {
	return strings.Join(strings.Fields(doc.Text()), " ")
}
