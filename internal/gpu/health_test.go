package gpu

import (
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"
)

func TestXIDsByWhatTheyMeanForWork(t *testing.T) {
	for severity, codes := range map[Severity][]uint64{
		Informs:  {13, 31, 43, 45, 63, 68, 94, 109, 154},
		Degraded: {48, 74, 9999},
		Fatal:    {62, 64, 79, 95, 119, 120, 140},
	} {
		for _, code := range codes {
			if fault := XID(code); fault.Severity != severity {
				t.Errorf("%s is %s, want %s", fault.Note, fault.Severity, severity)
			}
		}
	}
}

func TestFaultsAreValuesOfTaints(t *testing.T) {
	faults := []Fault{Lost, DoubleBitECC, XID(9999)}
	for code := range xids {
		faults = append(faults, XID(code))
	}
	for _, fault := range faults {
		if errs := validation.IsValidLabelValue(fault.Kind); fault.Kind == "" || len(errs) > 0 || fault.Note == "" {
			t.Errorf("%+v: %v", fault, errs)
		}
	}
}

func TestSeveritiesAreOrdered(t *testing.T) {
	for _, tc := range []struct {
		a, b Severity
		want bool
	}{{Fatal, Degraded, true}, {Degraded, Informs, true}, {Fatal, Fatal, false}, {Informs, Degraded, false}, {Informs, "", true}} {
		if got := tc.a.Exceeds(tc.b); got != tc.want {
			t.Errorf("%q exceeds %q: %v", tc.a, tc.b, got)
		}
	}
}
