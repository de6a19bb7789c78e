package v1alpha1

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

func TestParseRequest(t *testing.T) {
	const mib = 1 << 20
	for _, tc := range []struct {
		memory, cores string
		want          Request
		wantErr       string
	}{
		{},
		{memory: "1Mi", want: Request{MemoryBytes: mib}},
		{memory: "1.5Gi", cores: "10", want: Request{MemoryBytes: 1536 * mib, CorePercent: 10}},
		{memory: "1048577", cores: "0", want: Request{MemoryBytes: 2 * mib}},
		{memory: "0.1Gi", cores: "1e2", want: Request{MemoryBytes: 103 * mib, CorePercent: 100}},
		{memory: "1.2Mi", cores: "5.0", want: Request{MemoryBytes: 2 * mib, CorePercent: 5}},
		{memory: "8Pi", want: Request{MemoryBytes: 8 << 50}},
		{memory: "0", wantErr: "ask for 1Mi at least"},
		{memory: "-1Gi", wantErr: `Invalid value: "-1Gi": ask for 1Mi at least, or leave it out for the whole GPU`},
		{memory: "1048575.9", wantErr: "ask for 1Mi at least"},
		{memory: "9Pi", wantErr: "no GPU has so much"},
		{memory: "9223372036854775807", wantErr: "no GPU has so much"},
		{memory: "100E", wantErr: "no GPU has so much"},
		{memory: "-100E", wantErr: "ask for 1Mi at least"},
		{memory: "0.33333Gi", wantErr: "ask for 342Mi"},
		{cores: "100.5", wantErr: "want a whole percentage from 0 to 100"},
		{cores: "101", wantErr: "want a whole percentage from 0 to 100"},
		{cores: "-1", wantErr: `amounts[cores]: Invalid value: "-1": want a whole percentage from 0 to 100`},
		{cores: "100E", wantErr: "want a whole percentage from 0 to 100"},
	} {
		requests := map[resourceapi.QualifiedName]resource.Quantity{"other": resource.MustParse("-1")}
		if tc.memory != "" {
			requests[CapacityMemory] = resource.MustParse(tc.memory)
		}
		if tc.cores != "" {
			requests[CapacityCores] = resource.MustParse(tc.cores)
		}
		got, errs := ParseRequest(requests, field.NewPath("amounts"))
		switch {
		case tc.wantErr == "" && (len(errs) > 0 || got != tc.want):
			t.Errorf("%q, %q: got %v, %v, want %v", tc.memory, tc.cores, got, errs, tc.want)
		case tc.wantErr != "" && (len(errs) != 1 || !strings.Contains(errs[0].Error(), tc.wantErr)):
			t.Errorf("%q, %q: got %v, want %q", tc.memory, tc.cores, errs, tc.wantErr)
		}
	}
}

func TestRequestBounds(t *testing.T) {
	const gib = 1 << 30
	class := ShareClass{
		Memory: &MemoryBounds{Min: ptr.To(resource.MustParse("1.5Gi")), Max: ptr.To(resource.MustParse("4Gi"))},
		Cores:  &CoreBounds{Min: ptr.To(5), Max: ptr.To(50)},
	}
	for _, tc := range []struct {
		request Request
		want    string
	}{
		{Request{MemoryBytes: 4 * gib, CorePercent: 50}, ""},
		{Request{MemoryBytes: 4*gib + MemoryStep, CorePercent: 50}, `[memory]: Invalid value: "4097Mi": the device class allows at most 4Gi`},
		{Request{MemoryBytes: gib, CorePercent: 4}, `[memory]: Invalid value: "1Gi": the device class asks for at least 1536Mi; [cores]: Invalid value: 4: the device class asks for at least 5`},
		{Request{CorePercent: 51}, `[memory]: Required value: the device class allows at most 4Gi, and a request without memory is for the whole GPU; [cores]: Invalid value: 51: the device class allows at most 50`},
		{Request{}, `[memory]: Required value: the device class allows at most 4Gi, and a request without memory is for the whole GPU; ` +
			`[cores]: Required value: the device class allows at most 50, and a request for neither memory nor cores is for the whole GPU`},
	} {
		var got []string
		for _, err := range class.RequestBounds(tc.request, field.NewPath("at")) {
			got = append(got, strings.TrimPrefix(err.Error(), "at"))
		}
		if got := strings.Join(got, "; "); got != tc.want {
			t.Errorf("%v:\ngot  %s\nwant %s", tc.request, got, tc.want)
		}
	}
	if errs := (&ShareClass{Cores: &CoreBounds{Min: ptr.To(5), Max: ptr.To(100)}}).RequestBounds(Request{}, nil); len(errs) > 0 {
		t.Errorf("a whole GPU has all cores: %v", errs)
	}
}

// A name that is added to names.go must be known to whoever checks names.
func TestAllNamesAreListed(t *testing.T) {
	listed := map[string]bool{}
	for _, name := range append(Attributes(), Capacities()...) {
		listed[string(name)] = true
	}
	file, err := parser.ParseFile(token.NewFileSet(), "names.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	ast.Inspect(file, func(n ast.Node) bool {
		declared, ok := n.(*ast.ValueSpec)
		if !ok || !strings.HasPrefix(declared.Names[0].Name, "Attribute") && !strings.HasPrefix(declared.Names[0].Name, "Capacity") {
			return true
		}
		count++
		if name := strings.Trim(declared.Values[0].(*ast.BasicLit).Value, `"`); !listed[name] {
			t.Errorf("%s is not listed", name)
		}
		return true
	})
	if count != len(listed) || count == 0 {
		t.Errorf("%d names are declared, %d listed", count, len(listed))
	}
}
