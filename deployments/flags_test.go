package deployments

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

// flagsOf reads, from a program's source, each flag and its default where that is a literal. The programs themselves
// take long to build.
func flagsOf(t *testing.T, program string) map[string]string {
	t.Helper()
	files, err := filepath.Glob("../cmd/" + program + "/*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("source of %s: %v, %v", program, files, err)
	}
	flags := map[string]string{}
	for _, file := range files {
		source, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(source, func(n ast.Node) bool {
			// fs.StringVar(&f.name, "name", "default", "usage"), and so for other types
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) != 4 {
				return true
			}
			method, ok := call.Fun.(*ast.SelectorExpr)
			if ok && strings.HasSuffix(method.Sel.Name, "Var") {
				flags[literal(call.Args[1])] = literal(call.Args[2])
			}
			return true
		})
	}
	return flags
}

func literal(e ast.Expr) string {
	if l, ok := e.(*ast.BasicLit); ok {
		if s, err := strconv.Unquote(l.Value); err == nil {
			return s
		}
	}
	return ""
}

// An unknown flag ends the program at once. An unknown variable does nothing.
func TestProgramsKnowTheChartsFlags(t *testing.T) {
	objects := decode(t, mustTemplate(t))
	for program, template := range map[string]corev1.PodTemplateSpec{
		"kubelet-plugin": only[*appsv1.DaemonSet](t, objects).Spec.Template,
		"controller":     only[*appsv1.Deployment](t, objects).Spec.Template,
	} {
		known := flagsOf(t, program)
		known["v"] = "" // registered by k8s.io/component-base/logs
		for name := range flagsSet(template.Spec.Containers[0]) {
			if _, ok := known[name]; !ok {
				t.Errorf("%s has no flag --%s", program, name)
			}
		}
	}
}

// The chart leaves these two at their defaults, so the image must have the files where the defaults look.
func TestImageHasTheFlagsDefaults(t *testing.T) {
	flags := flagsOf(t, "kubelet-plugin")
	_, all := readDockerfile(t)
	for _, name := range []string{"cdi-hook", "preload-library"} {
		path := flags[name]
		copied := instruction{"COPY", "--from=" + all[0].name + " /out" + path + " " + path}
		if path == "" || !slices.Contains(all[1].instructions, copied) {
			t.Errorf("--%s is %q by default; the image lacks it", name, path)
		}
	}
}
